"""Train the classifier of the Keras recipe "Creating TFRecords" on COCO photos.

    beam-tfrec coco --layout keras --images train2017 \\
        --annotations instances_train2017.json --output out
    python examples/keras_recipe_classifier.py out

As in the recipe, a record is an annotation with its photo: the keys `image` and `category_id`.
On TPUs, make and compile the model within `strategy.scope()` of a `tf.distribute.TPUStrategy`,
and pass `drop_remainder=True` to `beam_tfrec.load`.
"""

import argparse

import keras

import beam_tfrec
from beam_tfrec.readers.data_sets import find_data_sets

SIZE = (64, 64)  # the recipe uses 224 px and EfficientNetB0, which take minutes on a CPU


def main() -> None:
    """Load, train some steps, and print how far the loss fell."""
    parser = argparse.ArgumentParser(description="Train the Keras recipe's classifier.")
    parser.add_argument("out", help="output of beam-tfrec coco --layout keras")
    parser.add_argument("--steps", type=int, default=5, help="steps per epoch")
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    keras.utils.set_random_seed(0)

    dataset = beam_tfrec.load(
        arguments.out, "train", batch_size=16, image_size=SIZE, shuffle=True, seed=0
    )
    batches = dataset.map(lambda record: (record["image"], record["category_id"])).repeat()

    classes = max(label.id for label in find_data_sets(arguments.out).labels) + 1
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((*SIZE, 3)),
            layers.Rescaling(1 / 127.5, offset=-1),  # pixels are 0 to 255
            layers.Conv2D(16, 5, strides=2, activation="relu"),
            layers.Conv2D(32, 3, strides=2, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(classes, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy())

    history = model.fit(
        batches, epochs=arguments.epochs, steps_per_epoch=arguments.steps, shuffle=False, verbose=0
    )
    losses = history.history["loss"]
    steps = arguments.steps * arguments.epochs
    print(f"{classes} classes, loss {losses[0]:.2f} -> {losses[-1]:.2f} after {steps} steps")


if __name__ == "__main__":
    main()
