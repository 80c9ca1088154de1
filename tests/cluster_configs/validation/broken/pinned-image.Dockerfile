ARG BASE=python
FROM ${BASE}
COPY constraints.txt /tmp/
RUN pip install --no-cache-dir -c /tmp/constraints.txt rayscribe==0.1.0 \
    && useradd --create-home ray
USER ray
