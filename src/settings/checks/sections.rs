//! The fixed sections: RabbitMQ, and what the backends ask of the rest.

use std::path::Path;

use super::Checks;
use crate::settings::path::KeyPath;
use crate::settings::types::{LimitBackend, QueueBackend};

impl Checks<'_> {
    pub(super) fn sections(&mut self) {
        let rabbit = &self.settings.rabbitmq;
        let section = KeyPath::of(&["rabbitmq"]);
        if rabbit.urls.is_empty() {
            let message = "no URL; write one, such as [\"amqp://guest:guest@127.0.0.1:5672/%2f\"]";
            self.error(section.join("urls"), message);
        }
        if self.settings.backend.queue == QueueBackend::Rabbitmq {
            let password = rabbit.password_file.as_deref();
            self.secret_file(&section.join("password_file"), password);
            let files = [&rabbit.ca_file, &rabbit.cert_file, &rabbit.key_file];
            self.tls_files(&section, files);
        }
        self.redis();
        self.backends();
    }

    fn backends(&mut self) {
        let backend = &self.settings.backend;
        let [queue, limits] = KeyPath::of(&["backend"]).all(["queue", "limits"]);
        if backend.queue == QueueBackend::Embedded {
            self.embedded(&queue);
        } else if backend.limits == LimitBackend::Memory {
            let message = "the limit holds for each replica alone; write \"redis\" to share it";
            self.warning([limits, queue], message);
        }
    }

    fn embedded(&mut self, queue: &KeyPath) {
        let embedded = &self.settings.embedded;
        let (input, leftover) = (&embedded.input, &embedded.leftover);
        let [at_input, at_leftover] = KeyPath::of(&["embedded"]).all(["input", "leftover"]);
        // A file, or something that reads like one: a named pipe, `/dev/stdin`.
        let is_readable = input.metadata().is_ok_and(|facts| !facts.is_dir());
        if input != Path::new("-") && !is_readable {
            let name = input.display();
            let message = format!("there is no file `{name}`; name one, or \"-\" for stdin");
            self.error([at_input.clone(), queue.clone()], message);
        }
        if leftover == input || leftover.as_os_str().is_empty() {
            let message =
                "name a file of its own for what was not delivered, such as \"leftover.ndjson\"";
            self.error([at_leftover, at_input], message);
        }
        let routes = self.settings.routes.len();
        if routes > 1 {
            let message = format!(
                "the embedded queue feeds exactly one route, and there are {routes}; leave one"
            );
            self.error([queue.clone(), KeyPath::of(&["routes"])], message);
        }
    }
}
