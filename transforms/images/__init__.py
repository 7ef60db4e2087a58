"""Images as files: walked, checked, decoded, turned, converted and encoded."""
