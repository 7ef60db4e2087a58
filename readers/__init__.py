"""What trainers import: one output, read by tf.data or at random, by manifest alone.

    import readers

    dataset = readers.load("gs://bucket/coco-tfrec", "train", batch_size=64)  # tf.data
    records = readers.open("gs://bucket/coco-tfrec", "train")  # records[42], without TensorFlow

Neither Beam nor, but for `load`, TensorFlow is imported.
"""
