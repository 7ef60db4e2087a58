"""Validate TFRecord files with TensorFlow Data Validation, and print its findings as JSON.

    python validate.py '{"CASE": ["schema.pbtxt", "OUT/*.tfrec"]}'

All cases are validated in one process, since the imports take longer than they do. For each case,
`statistics` has the anomalies of all Examples together by feature, `examples` the number of
Examples, `anomalous` the number of anomalous Examples by kind of anomaly.
"""

import json
import sys

import tensorflow_data_validation as tfdv


def validate(schema_path: str, pattern: str) -> dict:
    schema = tfdv.load_schema_text(schema_path)
    statistics = tfdv.generate_statistics_from_tfrecord(pattern)
    anomalies = tfdv.validate_statistics(statistics, schema)
    options = tfdv.StatsOptions(schema=schema)
    anomalous = tfdv.validate_examples_in_tfrecord(pattern, options)
    return {
        "features": len(schema.feature),
        "examples": statistics.datasets[0].num_examples,
        "statistics": {
            name: found.short_description for name, found in anomalies.anomaly_info.items()
        },
        "anomalous": {found.name: found.num_examples for found in anomalous.datasets},
    }


if __name__ == "__main__":
    cases = json.loads(sys.argv[1])
    print(json.dumps({case: validate(*paths) for case, paths in cases.items()}))
