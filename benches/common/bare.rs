//! The bare loop that sluiced is compared with: consume, POST, acknowledge, one task a message,
//! and no limit, no retries, no dead letters and no metrics. It uses the same AMQP client and the
//! same HTTP client.
//!
//! It runs in a process of its own, which is the benchmark again with a variable set, so that both
//! sides have the same costs between processes.

use std::path::Path;
use std::process::ExitCode;

use bytes::Bytes;
use futures::StreamExt;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties};

use super::watched::Watched;

const RABBITMQ: &str = "BARE_LOOP_RABBITMQ";
const QUEUE: &str = "BARE_LOOP_QUEUE";
const URL: &str = "BARE_LOOP_URL";
const PREFETCH: &str = "BARE_LOOP_PREFETCH";

type HttpClient = Client<HttpConnector, Full<Bytes>>;

/// Starts the loop in a process of its own.
pub fn start(
    dir: &Path,
    name: &str,
    rabbitmq: &str,
    queue: &str,
    url: &str,
    prefetch: u16,
) -> Watched {
    let env = [
        (RABBITMQ, rabbitmq.to_owned()),
        (QUEUE, queue.to_owned()),
        (URL, url.to_owned()),
        (PREFETCH, prefetch.to_string()),
    ];
    let program = std::env::current_exe().expect("the path of this benchmark");
    Watched::start(&program, &[], &env, dir.join(format!("{name}.log")))
}

/// Must be called first in `main`: runs the loop if this process was started for it.
pub fn run_if_told() -> Option<ExitCode> {
    let rabbitmq = std::env::var(RABBITMQ).ok()?;
    let wanted = |name| std::env::var(name).expect("all variables are set together");
    let prefetch = wanted(PREFETCH).parse().expect("a number");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(consume(rabbitmq, wanted(QUEUE), wanted(URL), prefetch));
    Some(ExitCode::SUCCESS)
}

async fn consume(rabbitmq: String, queue: String, url: String, prefetch: u16) {
    let connection = Connection::connect(&rabbitmq, ConnectionProperties::default())
        .await
        .expect("RabbitMQ answers");
    let channel = connection.create_channel().await.expect("a channel");
    channel
        .basic_qos(prefetch, BasicQosOptions::default())
        .await
        .expect("a prefetch");
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: HttpClient = Client::builder(TokioExecutor::new()).build(connector);
    let mut deliveries = channel
        .basic_consume(
            queue.into(),
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        )
        .await
        .expect("a consumer");
    let url: hyper::Uri = url.parse().expect("a URL");
    while let Some(delivery) = deliveries.next().await {
        let delivery = delivery.expect("a delivery");
        tokio::spawn(perform(
            client.clone(),
            channel.clone(),
            url.clone(),
            delivery,
        ));
    }
}

async fn perform(client: HttpClient, channel: Channel, url: hyper::Uri, delivery: Delivery) {
    let request = Request::post(url)
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(delivery.data)))
        .expect("a request");
    let answer = client.request(request).await.expect("an answer");
    assert!(answer.status().is_success());
    answer.into_body().collect().await.expect("its body");
    channel
        .basic_ack(delivery.delivery_tag, BasicAckOptions::default())
        .await
        .expect("an acknowledgement");
}
