FROM python:3.11.14-slim-bookworm
ARG U=root
USER $U
