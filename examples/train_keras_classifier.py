"""Train a small photo classifier until its loss has halved.

    beam-tfrec folder --images photos --output out    # photos/CLASS/*.jpg
    python examples/train_keras_classifier.py out

On TPUs, make and compile the model within `strategy.scope()` of a `tf.distribute.TPUStrategy`,
and pass `drop_remainder=True` to `beam_tfrec.load`, since TPUs need batches of one shape.
"""

import argparse

import keras

import beam_tfrec
from beam_tfrec.readers.data_sets import find_data_sets

SIZE = (48, 48)  # height and width in px: small, so that a CPU trains in seconds


def make_model(classes: int) -> keras.Model:
    """Return two convolutions and a dense layer with an output per class."""
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((*SIZE, 3)),
            layers.Rescaling(1 / 255),  # pixels are 0 to 255
            layers.Conv2D(16, 5, strides=2, activation="relu"),
            layers.Conv2D(32, 3, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(classes),
        ]
    )


def main() -> None:
    """Load, train, and print how far the loss fell."""
    parser = argparse.ArgumentParser(description="Train a small classifier of photos.")
    parser.add_argument("out", help="output of beam-tfrec folder")
    parser.add_argument("--epochs", type=int, default=60)
    arguments = parser.parse_args()
    keras.utils.set_random_seed(0)

    # Batches of {"image/encoded": uint8 [16, 48, 48, 3], "image/class/label": int64 [16], …}.
    form = {"batch_size": 16, "image_size": SIZE}
    dataset = beam_tfrec.load(arguments.out, "train", shuffle=True, seed=0, **form)
    batches = dataset.map(lambda record: (record["image/encoded"], record["image/class/label"]))
    labels = find_data_sets(arguments.out).labels
    model = make_model(max(label.id for label in labels) + 1)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    first = loss = model.evaluate(batches, verbose=0)
    epoch = 0
    while loss > first / 2 and epoch < arguments.epochs:
        epoch += 1
        loss = model.fit(batches, shuffle=False, verbose=0).history["loss"][0]
    print(f"{len(labels)} classes, loss {first:.2f} -> {loss:.2f} after {epoch} epochs")


if __name__ == "__main__":
    main()
