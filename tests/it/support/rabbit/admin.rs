//! What an administrator of RabbitMQ does and sees: users, virtual hosts, alarms, policies, queues, consumers. An
//! expression is evaluated in the server itself, for `rabbitmqctl` starts an Erlang of its own each time.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::{BOOT, Rabbit};

impl Rabbit {
    /// Evaluates an Erlang expression in the server. Returns its value as Erlang writes it. It is what `rabbitmqctl`
    /// does, which starts an Erlang of its own each time: that takes a hundred times as long. As with it, a server that
    /// takes connections already may still be starting.
    pub fn eval(&self, expression: &str) -> String {
        let end = std::time::SystemTime::now() + BOOT;
        let asked = format!(
            "case rabbit:is_running() of true -> {{done, begin {expression} end}}; false -> starting end"
        );
        loop {
            let said = self.erlang(&asked);
            let done = said.strip_prefix("{ok, {done, ");
            if let Some(done) = done.and_then(|done| done.strip_suffix("}}")) {
                return done.to_owned();
            }
            assert!(
                said == "{ok, starting}" && std::time::SystemTime::now() < end,
                "{expression}: {said}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Evaluates what returns `ok`.
    fn does(&self, expression: &str) {
        assert_eq!(self.eval(expression), "ok", "{expression}");
    }

    /// Evaluates an expression in the node, whether the server runs there or not.
    fn erlang(&self, expression: &str) -> String {
        // Two callers of one name would not be let in.
        static CALLERS: AtomicUsize = AtomicUsize::new(0);
        let caller = format!("test{}", CALLERS.fetch_add(1, Ordering::Relaxed));
        let mut call = Command::new("erl_call")
            .args(["-h", &caller, "-n", &self.name(), "-e"])
            .envs(self.env.clone())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("erl_call can be run");
        let mut stdin = call.stdin.take().expect("it was asked for");
        let written = stdin.write_all(format!("{expression}.\n").as_bytes());
        written.expect("erl_call reads an expression");
        drop(stdin);
        let Output { stdout, stderr, .. } = call.wait_with_output().expect("erl_call ends");
        let why = String::from_utf8_lossy(&stderr);
        assert!(why.is_empty(), "{expression}: {why}");
        String::from_utf8_lossy(&stdout).trim().to_owned()
    }

    pub(super) fn stop_app(&self) {
        assert_eq!(self.erlang("rabbit:stop()"), "{ok, ok}");
    }

    pub(super) fn start_app(&self) {
        assert_eq!(self.erlang("rabbit:start()"), "{ok, ok}");
    }

    /// Stops the server and starts it again, in the same process.
    pub fn restart(&self) {
        self.stop_app();
        self.start_app();
    }

    /// Adds a user with all rights. Returns the URL to connect with.
    pub fn add_user(&self, name: &str, password: &str) -> String {
        let (user, secret) = (binary(name), binary(password));
        self.does(&format!(
            "rabbit_auth_backend_internal:add_user({user}, {secret}, <<\"test\">>)"
        ));
        self.set_permissions("/", name, [".*"; 3]);
        let user = format!("{name}:{password}");
        self.url().replace("guest:guest", &user)
    }

    /// The same, with a virtual host of the same name, and all rights there.
    pub fn add_vhost_for(&self, name: &str, password: &str) -> String {
        self.add_vhost(name);
        let url = self.add_user(name, password);
        self.set_permissions(name, name, [".*"; 3]);
        url.replace("%2f", name)
    }

    pub fn change_password(&self, name: &str, password: &str) {
        let (user, secret) = (binary(name), binary(password));
        self.does(&format!(
            "rabbit_auth_backend_internal:change_password({user}, {secret}, <<\"test\">>)"
        ));
    }

    /// What a user may configure, write and read, as patterns of names.
    pub fn set_permissions(&self, vhost: &str, user: &str, rights: [&str; 3]) {
        let (vhost, user) = (binary(vhost), binary(user));
        let [configure, write, read] = rights.map(binary);
        self.does(&format!(
            "rabbit_auth_backend_internal:set_permissions(\
             {user}, {vhost}, {configure}, {write}, {read}, <<\"test\">>)"
        ));
    }

    pub fn add_vhost(&self, name: &str) {
        let name = binary(name);
        self.does(&format!("rabbit_vhost:add({name}, <<\"test\">>)"));
    }

    /// How many queues a virtual host may have.
    pub fn limit_queues(&self, vhost: &str, most: i32) {
        self.limit(vhost, "max-queues", most);
    }

    /// Ends the only member of a quorum queue: its leader, and the queue stays known.
    pub fn stop_quorum_queue(&self, queue: &str) {
        let queue = format!("%2F_{queue}");
        self.does(&format!(
            "rabbit_quorum_queue:stop_server({{list_to_atom({queue:?}), node()}})"
        ));
    }

    /// How large a message may be, on channels that are opened from now on.
    pub fn limit_messages(&self, bytes: u32) {
        self.does(&format!(
            "application:set_env(rabbit, max_message_size, {bytes}), \
             persistent_term:put(max_message_size, {bytes})"
        ));
    }

    /// How many connections a virtual host may have.
    pub fn limit_connections(&self, vhost: &str, most: i32) {
        self.limit(vhost, "max-connections", most);
    }

    fn limit(&self, vhost: &str, of: &str, most: i32) {
        let limit = binary(&format!("{{\"{of}\":{most}}}"));
        let vhost = binary(vhost);
        self.does(&format!(
            "rabbit_vhost_limit:parse_set({vhost}, {limit}, <<\"test\">>)"
        ));
    }

    /// Closes all connections of a user, as `rabbitmqctl close_all_connections` does with those of all.
    pub fn close_connections_of(&self, user: &str) {
        let user = binary(user);
        self.does(&format!(
            "[rabbit_networking:close_connection(C, \"maintenance\") \
             || C <- rabbit_networking:connections(), \
             (catch rabbit_networking:connection_info(C, [user])) =:= [{{user, {user}}}]], ok"
        ));
    }

    /// Memory is short, and publishers are blocked; or it is not.
    pub fn memory_alarm(&self, on: bool) {
        let most = if on { "0" } else { "{absolute, 2000000000}" };
        self.does(&format!(
            "vm_memory_monitor:set_vm_memory_high_watermark({most})"
        ));
    }

    /// The same of the disk.
    pub fn disk_alarm(&self, on: bool) {
        let least = if on { "1000000GB" } else { "50MB" };
        self.does(&format!(
            "rabbit_disk_monitor:set_disk_free_limit({least:?})"
        ));
    }

    /// A policy for that queue (a definition in JSON).
    pub fn set_policy(&self, policy: &str, queue: &str, definition: &str) {
        let (policy, definition) = (binary(policy), binary(definition));
        let pattern = binary(&format!("^{queue}$"));
        self.does(&format!(
            "rabbit_policy:parse_set(\
             <<\"/\">>, {policy}, {pattern}, {definition}, 0, <<\"queues\">>, <<\"test\">>)"
        ));
    }

    pub fn clear_policy(&self, policy: &str) {
        let policy = binary(policy);
        self.does(&format!(
            "rabbit_policy:delete(<<\"/\">>, {policy}, <<\"test\">>)"
        ));
    }

    /// The names of all queues, as a list of Erlang.
    pub fn queues(&self) -> String {
        self.queues_of("/")
    }

    /// The same of a virtual host.
    pub fn queues_of(&self, vhost: &str) -> String {
        let vhost = binary(vhost);
        self.eval(&format!(
            "[binary_to_list(element(4, Q)) || Q <- rabbit_amqqueue:list_names({vhost})]"
        ))
    }

    /// A classic queue that a test declares while it has no connection.
    pub fn declare(&self, vhost: &str, queue: &str) {
        let queue = resource(vhost, queue);
        self.eval(&format!(
            "rabbit_amqqueue:declare({queue}, true, false, [], none, <<\"test\">>), ok"
        ));
    }

    /// Whether a consumer of that queue is listed.
    pub fn is_consumed(&self, queue: &str) -> bool {
        let queue = resource("/", queue);
        self.eval(&format!(
            "lists:any(fun(C) -> proplists:get_value(queue_name, C) =:= {queue} end, \
             rabbit_amqqueue:consumers_all(<<\"/\">>))"
        )) == "true"
    }

    /// How many messages of a queue were delivered and not acknowledged.
    pub fn unacknowledged(&self, queue: &str) -> u64 {
        let queue = resource("/", queue);
        let count = self.eval(&format!(
            "{{ok, Q}} = rabbit_amqqueue:lookup({queue}), \
             [{{_, N}}] = rabbit_amqqueue:info(Q, [messages_unacknowledged]), N"
        ));
        count.parse().expect("a number")
    }

    /// The consumers of all channels. A quorum queue counts those too that are cancelled and hold messages.
    pub fn consumers(&self) -> u64 {
        let count =
            self.eval("lists:sum([N || [{_, N}] <- rabbit_channel:info_all([consumer_count])])");
        count.parse().expect("a number")
    }
}

/// A text as Erlang writes a binary.
fn binary(text: &str) -> String {
    format!("<<{text:?}>>")
}

/// A queue as Erlang names it.
fn resource(vhost: &str, queue: &str) -> String {
    let (vhost, queue) = (binary(vhost), binary(queue));
    format!("rabbit_misc:r({vhost}, queue, {queue})")
}
