"""Train a network that enlarges photos four times, on pairs of low and high resolution.

    beam-tfrec pairs --low train=lr --high train=hr --scale 4 --output out
    python examples/super_resolution_pairs.py out

On TPUs: make the model and compile it within `strategy.scope()` of a `tf.distribute.TPUStrategy`,
and say `.batch(8, drop_remainder=True)`. What `--tensors` wrote is for `tf.io.parse_tensor`.
"""

import argparse

import keras
import tensorflow as tf

import beam_tfrec

SCALE = 4
PATCH = 24  # px of the low image; a CPU learns from patches in seconds


def cut_patch(record: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the same random place of both images, in [0, 1]."""
    low, high = record["lr"], record["hr"]
    room = tf.shape(low)[:2] - PATCH + 1
    top, left = (tf.random.uniform([], 0, room[axis], tf.int32) for axis in (0, 1))
    low = low[top : top + PATCH, left : left + PATCH]
    side = SCALE * PATCH
    high = high[SCALE * top :, SCALE * left :][:side, :side]
    low, high = tf.ensure_shape(low, (PATCH, PATCH, 3)), tf.ensure_shape(high, (side, side, 3))
    return tf.cast(low, tf.float32) / 255, tf.cast(high, tf.float32) / 255


def make_model() -> keras.Model:
    """Return ESPCN: convolutions of the low image, whose channels become pixels."""
    layers = keras.layers
    low = layers.Input((None, None, 3))
    found = layers.Conv2D(32, 5, padding="same", activation="tanh")(low)
    found = layers.Conv2D(16, 3, padding="same", activation="tanh")(found)
    found = layers.Conv2D(3 * SCALE**2, 3, padding="same")(found)
    return keras.Model(low, layers.Lambda(lambda x: tf.nn.depth_to_space(x, SCALE))(found))


def main() -> None:
    """Load, train, and say how far the loss fell."""
    parser = argparse.ArgumentParser(description="Train a network that enlarges photos.")
    parser.add_argument("out", help="what beam-tfrec pairs wrote")
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    keras.utils.set_random_seed(0)

    pairs = beam_tfrec.load(
        arguments.out, "train"
    ).cache()  # decoded once; sizes differ: no batches
    batches = pairs.repeat().map(cut_patch).batch(8).prefetch(tf.data.AUTOTUNE)
    model = make_model()
    model.compile(keras.optimizers.Adam(2e-3), "mse")
    losses = [model.train_on_batch(*batch) for batch in batches.take(arguments.steps)]
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} after {arguments.steps} steps")


if __name__ == "__main__":
    main()
