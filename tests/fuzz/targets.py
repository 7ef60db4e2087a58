"""All fuzz targets by name."""

from tests.fuzz import annotations, growth, images, names, outputs

TARGETS = {
    target.name: target
    for module in (images, annotations, names, outputs, growth)
    for target in module.TARGETS
}
