"""Feed an object detector with batches of one shape: resized images and padded boxes.

    beam-tfrec coco --images train2017 --annotations instances_train2017.json --output out
    python examples/keras_detection_input.py out

All shapes are static, as TPUs need. On TPUs, make and compile the model within `strategy.scope()`
of a `tf.distribute.TPUStrategy`. Several hosts get their shares with
`strategy.distribute_datasets_from_function` and `beam_tfrec.load(..., input_context=context)`.
"""

import argparse

import keras
import tensorflow as tf

import beam_tfrec

SIZE = (128, 128)  # height and width in px
OBJECTS = 20  # boxes per image; shorter lists are padded, longer ones cut
EDGES = [f"image/object/bbox/{edge}" for edge in ("ymin", "xmin", "ymax", "xmax")]


def to_inputs(record: dict[str, tf.Tensor]) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Return images, and boxes as [ymin, xmin, ymax, xmax] in [0, 1], padded with -1."""
    boxes = tf.stack([record[edge] for edge in EDGES], axis=-1)
    return record["image/encoded"], {"boxes": boxes, "labels": record["image/object/class/label"]}


def box_loss(wanted: tf.Tensor, given: tf.Tensor) -> tf.Tensor:
    """Return the mean squared distance of edges, without the padding."""
    is_box = tf.cast(wanted[..., :1] >= 0, tf.float32)
    distances = is_box * tf.square(wanted - given)
    return tf.reduce_sum(distances) / (4 * tf.maximum(tf.reduce_sum(is_box), 1))


def main() -> None:
    """Print the shapes of a batch, and train a toy head on it."""
    parser = argparse.ArgumentParser(description="Feed an object detector.")
    parser.add_argument("out", help="output of beam-tfrec coco")
    arguments = parser.parse_args()
    keras.utils.set_random_seed(0)

    form = {"image_size": SIZE, "max_objects": OBJECTS}
    dataset = beam_tfrec.load(arguments.out, "train", batch_size=8, drop_remainder=True, **form)
    batches = dataset.map(to_inputs)
    images, objects = next(iter(batches))
    count = tf.reduce_sum(tf.cast(objects["labels"] >= 0, tf.int32), axis=1).numpy().tolist()
    print(f"images {images.shape}, boxes {objects['boxes'].shape}, number of boxes {count}")

    layers = keras.layers
    head = [layers.Rescaling(1 / 255), layers.Conv2D(8, 3, 4), layers.GlobalAveragePooling2D()]
    boxes = [layers.Dense(4 * OBJECTS, "sigmoid"), layers.Reshape((OBJECTS, 4))]
    model = keras.Sequential([layers.Input((*SIZE, 3)), *head, *boxes])
    model.compile(keras.optimizers.Adam(0.01), box_loss)
    losses = [model.train_on_batch(images, objects["boxes"]) for _ in range(10)]
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} after 10 steps")


if __name__ == "__main__":
    main()
