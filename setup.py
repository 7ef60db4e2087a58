"""Packaging of beam-tfrec; Beam's `--setup_file ./setup.py` ships the same package to workers."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent

setup(
    name="beam-tfrec",
    version=re.findall('__version__ = "(.+)"', (ROOT / "beam_tfrec/__init__.py").read_text())[0],
    description="Images and their annotations to sharded TFRecord files, with Apache Beam.",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    # setuptools packs its whole build folder, and older checkouts left packages in build/lib.
    options={"build": {"build_base": "build/beam_tfrec"}},
    packages=find_packages(include=["beam_tfrec", "beam_tfrec.*"]),
    package_data={
        "beam_tfrec.schemas.documents": ["*.j2"],
        "beam_tfrec.transforms.report": ["assets/*"],
    },
    install_requires=[
        "apache-beam>=2.77",
        "google-auth>=2.30",
        "google-cloud-storage>=3.1",
        "google-crc32c>=1.5",
        "jinja2>=3.1",
        "msgspec>=0.21",
        "numpy>=2.0",
        "obstore>=0.8",
        "pillow>=11",
        "protobuf>=4.25",
        "pyarrow>=16",
        "pycocotools>=2.0.10",
        "pyyaml>=6.0",
        "requests>=2.31",
        "simplejpeg>=1.8",
        "tqdm>=4.66",
        "urllib3>=2.0",
    ],
    extras_require={
        "array_record": ["array_record>=0.8.1"],
        "tensorflow": ["tensorflow>=2.16"],
        "gcp": ["apache-beam[gcp]>=2.77"],
    },
    entry_points={"console_scripts": ["beam-tfrec = beam_tfrec.pipelines.cli:main"]},
)
