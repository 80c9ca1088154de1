ARG BASE=python:3.11.14-slim-bookworm
FROM ${BASE}
ENV HF_TOKEN=swordfish
COPY constraints.txt /tmp/
RUN pip install --no-cache-dir -c /tmp/constraints.txt rayscribe==0.1.0 \
    && useradd --create-home ray
USER ray
