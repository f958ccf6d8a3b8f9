# RLinf's own image, with this package in the virtual environments that it has.
#
#     docker build -t rlinf-async .
#     docker build --build-arg BASE=rlinf/rlinf:agentic-rlinf0.4-behavior --build-arg VENVS="openvla-oft" -t rlinf-async .
#
# RLinf's images (its docker/Dockerfile) hold one environment per model, /opt/venv/NAME, which `source switch_env NAME`
# enters, and no RLinf: its checkout is mounted and put on PYTHONPATH, as in RLinf's installation page. Environments
# with Python 3.10 (BEHAVIOR, D4RL) cannot have this package.
#
# This file has not been built by the project's tests, which have no Docker; docs/install.md says the same.
ARG BASE=rlinf/rlinf:agentic-rlinf0.4-maniskill_libero
FROM ${BASE}

ARG VENVS="openpi"
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]

COPY . /opt/rlinf-async
# uv is what RLinf's image makes its environments with; they have no pip of their own.
RUN for name in ${VENVS}; do \
        uv pip install --no-cache --python "/opt/venv/${name}/bin/python" "/opt/rlinf-async[report]"; \
        "/opt/venv/${name}/bin/rlinf-async" --version; \
    done
