"""Validate TFRecord files with TensorFlow Data Validation, and print what it finds as JSON.

    python validate.py schema.pbtxt 'OUT/*.tfrec'

`statistics` has the anomalies of all Examples together by feature, `examples` the number of
Examples, `anomalous` how many of them have an anomaly of their own by its kind.
"""

import json
import sys

import tensorflow_data_validation as tfdv


def main(schema_path: str, pattern: str) -> None:
    schema = tfdv.load_schema_text(schema_path)
    statistics = tfdv.generate_statistics_from_tfrecord(pattern)
    anomalies = tfdv.validate_statistics(statistics, schema)
    options = tfdv.StatsOptions(schema=schema)
    anomalous = tfdv.validate_examples_in_tfrecord(pattern, options)
    print(
        json.dumps(
            {
                "features": len(schema.feature),
                "examples": statistics.datasets[0].num_examples,
                "statistics": {
                    name: found.short_description for name, found in anomalies.anomaly_info.items()
                },
                "anomalous": {found.name: found.num_examples for found in anomalous.datasets},
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
