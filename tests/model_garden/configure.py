"""Take a step of RetinaNet's training by a configuration in YAML.

Runs where `compare.py` does: `python configure.py CONFIG.yaml` prints the loss of a step on
`train_data`, and the classes of the objects in the first images of `validation_data`, as JSON.
"""

import json
import sys

import tf_keras
from compare import import_alone


def main(path: str) -> None:
    """Override Model Garden's configuration for COCO as `--config_file` does, and use it."""
    configs = import_alone("official.vision.configs.retinanet")
    overrides = import_alone("official.modeling.hyperparams.params_dict")
    tasks = import_alone("official.vision.tasks.retinanet")
    config = configs.retinanet_resnetfpn_coco()
    overrides.override_params_dict(config, path, is_strict=True)
    config.task.model.input_size = [128, 128, 3]  # a step in seconds
    config.validate()
    task = tasks.RetinaNetTask(config.task)
    batch = next(iter(task.build_inputs(config.task.train_data)))
    logs = task.train_step(batch, task.build_model(), tf_keras.optimizers.SGD(0.01))
    _, labels = next(iter(task.build_inputs(config.task.validation_data)))
    padded = labels["groundtruths"]["classes"].numpy().tolist()
    classes = [[number for number in of_image if number >= 0] for of_image in padded]
    print(json.dumps({"loss": float(logs["loss"]), "classes": classes}))


if __name__ == "__main__":
    main(*sys.argv[1:])
