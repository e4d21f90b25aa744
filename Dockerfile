FROM python:3.11-slim-bookworm

RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/homing
COPY pyproject.toml constraints.txt README.md ./
COPY plugins plugins
RUN pip install --no-cache-dir -c constraints.txt -e ".[all]"
COPY dags dags
COPY spark_apps spark_apps

# A new volume takes the owner of the directory it covers.
RUN useradd --uid 50000 --create-home homing \
    && mkdir -p var/airflow/work var/lake var/spark var/definitions \
    && chown -R homing: var
USER homing
ENV AIRFLOW_HOME=/opt/homing/var/airflow
