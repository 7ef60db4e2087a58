"""All fuzz targets by name."""

from tests.fuzz import annotations, growth, images, names, outputs, segmentations, texts

TARGETS = {
    target.name: target
    for module in (images, annotations, segmentations, names, outputs, texts, growth)
    for target in module.TARGETS
}
