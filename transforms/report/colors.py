"""The color of a class: one and the same for its boxes, its masks and its place in charts."""

import colorsys

NO_CLASS = "#666666"
"""Of what has no class, or one that nobody knows."""

_GOLDEN_PART = 0.6180339887  # of a turn: neighbours differ much, and no two hues fall together
_LIGHTNESS = (0.45, 0.35, 0.55)
_SATURATION = 0.75


def class_color(label: int | None) -> str:
    """Return the color of a label id, as HTML writes it; the same in every report.

    >>> class_color(1), class_color(2), class_color(None)
    ('#163d9c', '#9be236', '#666666')
    """
    if label is None:
        return NO_CLASS
    hue = label * _GOLDEN_PART % 1
    levels = colorsys.hls_to_rgb(hue, _LIGHTNESS[label % len(_LIGHTNESS)], _SATURATION)
    return "#" + "".join(f"{round(255 * level):02x}" for level in levels)
