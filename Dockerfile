# syntax=docker/dockerfile:1
# docker build -t sluiced .
# docker run -v ./sluiced.toml:/etc/sluiced/sluiced.toml:ro -p 127.0.0.1:9464:9464 sluiced
#
# From a release binary that was built for this Debian, instead of compiling: FOLDER/sluiced, and
# docker build --build-context build=FOLDER -t sluiced .

ARG RUST_VERSION=1.95
ARG DEBIAN=bookworm

# ---- build -------------------------------------------------------------------------------------
FROM rust:${RUST_VERSION}-slim-${DEBIAN} AS build
WORKDIR /build
ENV CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0
COPY Cargo.toml Cargo.lock ./
COPY src src
COPY crates crates
COPY lua lua
COPY config config
# The manifest names them, so they have to exist.
COPY benches benches
# Dependencies are kept from build to build. COPY keeps the files' own times, which may be older than
# what was built of them before, and cargo would then take that for up to date.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/build/target \
    find src crates lua config -type f -exec touch {} + \
    && cargo build --profile dist --locked --features traces --bin sluiced \
    && strip --strip-all -o /sluiced target/dist/sluiced

# ---- what the image holds ----------------------------------------------------------------------
FROM debian:${DEBIAN}-slim AS root
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates
WORKDIR /image
COPY --from=build /sluiced usr/local/bin/sluiced
COPY LICENSE-APACHE LICENSE-MIT usr/share/doc/sluiced/
# The program and the shared libraries that it names; the certificates of public authorities, for amqps://,
# rediss:// and https://; where names are looked up; an account, so that files can be given to it by name; a
# place for the files of `sluiced demo`.
RUN ldd usr/local/bin/sluiced | grep -o '/[^ ]*' | xargs cp --dereference --parents --target-directory . \
    && cp --parents /etc/ssl/certs/ca-certificates.crt . \
    && mkdir etc/sluiced && mkdir --mode=1777 tmp \
    && echo 'hosts: files dns' > etc/nsswitch.conf \
    && echo 'sluiced:x:10001:10001::/nonexistent:/nonexistent' > etc/passwd \
    && echo 'sluiced:x:10001:' > etc/group \
    && chroot . /usr/local/bin/sluiced --version

# ---- run ---------------------------------------------------------------------------------------
# No shell, no package, nothing to update but sluiced itself and these few files.
FROM scratch
COPY --from=root /image /
LABEL org.opencontainers.image.title=sluiced org.opencontainers.image.licenses="MIT OR Apache-2.0" \
    org.opencontainers.image.description="From a RabbitMQ queue to a rate-limited downstream"
USER 10001:10001

# Inside a container, loopback is not reachable from outside: publishing the port decides
# what can reach it.
ENV SLUICED__ADMIN__LISTEN=0.0.0.0:9464
# Commands in a running container find the configuration that it runs.
ENV SLUICED_CONFIG=/etc/sluiced/sluiced.toml
EXPOSE 9464

# /healthz and not /readyz: an orchestrator restarts what is unhealthy, and a restart does not
# bring RabbitMQ or Redis back.
HEALTHCHECK --interval=15s --timeout=5s --start-period=15s --retries=3 \
    CMD ["/usr/local/bin/sluiced", "health", "--url", "http://127.0.0.1:9464/healthz"]

# No init in between: sluiced handles SIGTERM and SIGINT itself, also as process 1, and starts no
# children that would have to be reaped. Give it its grace: docker stop --time 45.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/sluiced"]
CMD ["run", "--config", "/etc/sluiced/sluiced.toml"]
