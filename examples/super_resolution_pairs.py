"""Train a network that enlarges photos four times, from pairs of low and high resolution.

    beam-tfrec pairs --low train=lr --high train=hr --scale 4 --output out
    python examples/super_resolution_pairs.py out

On TPUs, make and compile the model within `strategy.scope()` of a `tf.distribute.TPUStrategy`, and
use `.batch(8, drop_remainder=True)`. For an output written with `--tensors`, call
`tf.io.parse_tensor`.
"""

import argparse

import keras
import tensorflow as tf

import beam_tfrec

SCALE = 4
PATCH = 24  # side in px of the low image's patches; small, so that a CPU trains in seconds


def cut_patch(record: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Cut a patch from the same random place of both images, with values in [0, 1]."""
    low, high = record["lr"], record["hr"]
    room = tf.shape(low)[:2] - PATCH + 1
    top, left = (tf.random.uniform([], 0, room[axis], tf.int32) for axis in (0, 1))
    low = low[top : top + PATCH, left : left + PATCH]
    side = SCALE * PATCH
    high = high[SCALE * top :, SCALE * left :][:side, :side]
    low, high = tf.ensure_shape(low, (PATCH, PATCH, 3)), tf.ensure_shape(high, (side, side, 3))
    return tf.cast(low, tf.float32) / 255, tf.cast(high, tf.float32) / 255


def make_model() -> keras.Model:
    """Return ESPCN: convolutions on the low image, then channels rearranged into pixels."""
    layers = keras.layers
    low = layers.Input((None, None, 3))
    found = layers.Conv2D(32, 5, padding="same", activation="tanh")(low)
    found = layers.Conv2D(16, 3, padding="same", activation="tanh")(found)
    found = layers.Conv2D(3 * SCALE**2, 3, padding="same")(found)
    return keras.Model(low, layers.Lambda(lambda x: tf.nn.depth_to_space(x, SCALE))(found))


def main() -> None:
    """Load, train, and print how far the loss fell."""
    parser = argparse.ArgumentParser(description="Train a network that enlarges photos.")
    parser.add_argument("out", help="output of beam-tfrec pairs")
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    keras.utils.set_random_seed(0)

    # Images are decoded once. Their sizes differ, so batches are made of patches.
    pairs = beam_tfrec.load(arguments.out, "train").cache()
    batches = pairs.repeat().map(cut_patch).batch(8).prefetch(tf.data.AUTOTUNE)
    model = make_model()
    model.compile(keras.optimizers.Adam(2e-3), "mse")
    losses = [model.train_on_batch(*batch) for batch in batches.take(arguments.steps)]
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} after {arguments.steps} steps")


if __name__ == "__main__":
    main()
