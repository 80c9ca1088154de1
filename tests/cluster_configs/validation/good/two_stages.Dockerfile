from python:3.11.14-slim-bookworm AS base
RUN <<END
# the user of both stages
if ! id ray; then
    useradd --create-home ray
fi
END
USER ray
FROM base
COPY constraints.txt /tmp/
RUN pip install --no-cache-dir -c /tmp/constraints.txt rayscribe==0.1.0
