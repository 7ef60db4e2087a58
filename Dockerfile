# The image of Dataflow's workers, and of the Flex Template's launcher: docs/dataflow.md.
# A tag names a version, but its image may be rebuilt. To get the same bytes every time, append the
# digest that `docker buildx imagetools inspect IMAGE` prints: FROM image:tag@sha256:...
# There is no USER line: workers must run as root. Dataflow mounts folders that belong to root, and
# Beam's boot program writes staged files and logs there.
FROM apache/beam_python3.11_sdk:2.77.0 AS packages
COPY requirements-worker.lock /tmp/
# --no-deps: the lock is complete, and holds Pillow >= 13 against apache-beam's pin.
RUN pip install --no-cache-dir --no-deps --require-hashes -r /tmp/requirements-worker.lock

FROM packages AS wheel
WORKDIR /src
COPY setup.py pyproject.toml README.md ./
COPY beam_tfrec beam_tfrec
COPY schemas schemas
COPY transforms transforms
COPY pipelines pipelines
COPY readers readers
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir=/wheels .

# Only the launcher program is taken from this image: a Go binary, without packages of its own. It starts
# whatever Python there is: Google's sample gemma-flex-template, too, takes it from another Python's image.
# The tag is the newest dated one that Google names for Python (GoogleCloudPlatform/medical-imaging,
# ilm/deployment/dataflow_launcher.Dockerfile). Newer releases are listed in
# https://docs.cloud.google.com/dataflow/docs/reference/flex-templates-base-images
FROM gcr.io/dataflow-templates-base/python313-template-launcher-base:flex_templates_base_image_release_20260323_RC00 AS launcher

FROM packages
COPY --from=wheel /wheels /tmp/wheels
RUN pip install --no-cache-dir --no-deps --no-index /tmp/wheels/*.whl && rm -r /tmp/wheels
COPY --from=launcher /opt/google/dataflow/python_template_launcher /opt/google/dataflow/python_template_launcher
# A folder of its own: the launcher runs a file, and Python puts its folder before all packages.
COPY pipelines/flex_template.py /opt/beam-tfrec/main.py
ENV FLEX_TEMPLATE_PYTHON_PY_FILE=/opt/beam-tfrec/main.py \
    RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1
# As in Beam's own image. Dataflow starts the launcher by its path.
ENTRYPOINT ["/opt/apache/beam/boot"]
