# The image of sluice: all daemons, the CLI and the hook library, built from source. The last stage holds only the files that they load:
# no shell, no package manager.
#
#   docker build -t sluice .                        (buildah bud, podman build: the same)
#   --build-arg BASE=registry.example/debian:bookworm-slim     any Debian 12
#   --build-arg REVISION=$(git rev-parse HEAD) --build-arg CREATED=2026-11-21T00:00:00Z      labels
#
# scripts/image wraps this: fixed times, so that two builds give the same digest.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
WORKDIR /src
# Packages, headers and the compiler of the hook library change seldom: a layer of their own.
COPY scripts/ scripts/
RUN scripts/setup build && rm -rf /var/lib/apt/lists/*
COPY . .
# The build type that the tests run on; image_root strips the files of the image.
ARG JOBS=2
RUN . scripts/env.sh && cmake -G Ninja -B /build -DCMAKE_BUILD_TYPE=RelWithDebInfo \
      -DSLUICE_PARTS="proto;common;trace;hooklib;agent;kube;webhook;deviceplugin;scheduler;cli" && \
    ninja -C /build -j ${JOBS} sluice sluice-agent sluice-device-plugin sluice-dra-driver sluice-webhook sluice-extender \
      lib/libsluice.so lib/libsluice_engine.so && \
    scripts/image_root /build /image && rm -rf /build

FROM scratch
ARG VERSION=unknown
ARG REVISION=unknown
ARG CREATED=
LABEL org.opencontainers.image.title="sluice" \
      org.opencontainers.image.description="Fractions of NVIDIA GPUs with memory held to a budget" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
COPY --from=build /image/ /
# The node's parts ask for uid 0 in the chart (kubelet's folders are root's); everything else runs as this.
USER 65532:65532
ENTRYPOINT ["/usr/bin/sluice"]
