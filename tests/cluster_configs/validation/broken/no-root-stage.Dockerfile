FROM python:3.11.14-slim-bookworm AS build
USER ray
FROM python:3.11.14-slim-bookworm
COPY --from=build /opt /opt
