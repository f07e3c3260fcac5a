# syntax=docker/dockerfile:1
# docker build -t sluiced .
# docker run -v ./sluiced.toml:/etc/sluiced/sluiced.toml:ro -p 127.0.0.1:9464:9464 sluiced

ARG RUST_VERSION=1.95
ARG DEBIAN=bookworm

# ---- build -------------------------------------------------------------------------------------
FROM rust:${RUST_VERSION}-slim-${DEBIAN} AS build
WORKDIR /build
ENV CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0

# The dependencies with an empty program: this layer is built again only when they change, not
# with every change of the source. (A bench that the manifest names has to exist, hence the copy;
# the pattern is there because a plain name would have to exist too.)
COPY Cargo.toml Cargo.lock ./
COPY bench[e]s ./benches/
RUN mkdir src \
    && echo 'fn main() {}' > src/main.rs \
    && touch src/lib.rs \
    && cargo build --release --locked \
    && rm -r src

# The program. COPY keeps the files' own times, which may be older than the empty program's, and
# cargo would then take that for up to date.
COPY src src
COPY lua lua
COPY config config
RUN find src lua config -type f -exec touch {} + \
    && cargo build --release --locked \
    && target/release/sluiced --version

# ---- run ---------------------------------------------------------------------------------------
FROM debian:${DEBIAN}-slim
# The certificates of public authorities, for amqps://, rediss:// and https://. The account exists
# so that files can be given to it by name; it owns nothing.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 sluiced \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent \
        --shell /usr/sbin/nologin sluiced \
    && mkdir /etc/sluiced
COPY --from=build /build/target/release/sluiced /usr/local/bin/sluiced
USER 10001:10001

# Inside a container, loopback is not reachable from outside: publishing the port decides
# what can reach it.
ENV SLUICED__ADMIN__LISTEN=0.0.0.0:9464
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
