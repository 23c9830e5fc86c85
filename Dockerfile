# The flights job of docker-compose.yml: Python, a Java for Spark, the pinned requirements, offsetstore.
FROM python:3.11-slim-bookworm

# procps: Spark's launch scripts ask `ps`.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/offsetstore
COPY requirements/job.txt requirements/job.txt
RUN pip install --no-cache-dir --require-hashes --requirement requirements/job.txt

COPY pyproject.toml setup.py README.md LICENSE ./
COPY offsetstore offsetstore
COPY migrations migrations
RUN pip install --no-cache-dir --no-deps . && useradd --create-home offsetstore

# Spark's connector is fetched into the cache when the job first starts; docker-compose.yml keeps it in a volume.
USER offsetstore
WORKDIR /home/offsetstore
RUN mkdir .cache checkpoints
ENV PYTHONUNBUFFERED=1
CMD ["python", "-m", "offsetstore.demo.job"]
