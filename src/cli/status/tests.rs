use super::*;

#[test]
fn what_listens_on_every_address_is_asked_on_that_of_this_machine() {
    for (listen, asked) in [
        ("0.0.0.0:9464", "127.0.0.1:9464"),
        ("[::]:9464", "[::1]:9464"),
        ("10.0.0.0:9464", "10.0.0.0:9464"),
        ("[fe80::]:9464", "[fe80::]:9464"),
        ("localhost:9464", "localhost:9464"),
    ] {
        assert_eq!(reached(listen), asked);
    }
}

#[test]
fn the_address_is_that_of_the_arguments_the_files_or_the_environment() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("sluiced.toml");
    let text = "[admin]\nlisten = \"10.0.0.0:1\"\n[limits.account]\nrate = \"1/1s\"\n\
        [routes.sms]\nqueue = \"sms\"\nlimits = [\"account\"]\n\
        downstream = { kind = \"http\", url = \"http://localhost\" }\n";
    std::fs::write(&file, text).expect("written");
    let asked = |url: Option<&str>, config: &[PathBuf], env: &[(&str, &str)]| {
        let args = ReplicaArgs {
            url: url.map(str::to_owned),
            config: config.to_vec(),
        };
        let env = env
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        args.asked(env).map(|asked| asked.url).ok()
    };
    let (url, files) = (Some("http://other:9"), &[file][..]);
    let env = &[(LISTEN, "0.0.0.0:2")][..];
    assert_eq!(asked(url, files, env).as_deref(), url);
    let said = |config, env| asked(None, config, env).expect("an address");
    assert_eq!(said(&[], &[]), "http://127.0.0.1:9464");
    assert_eq!(said(&[], env), "http://127.0.0.1:2");
    assert_eq!(said(files, &[]), "http://10.0.0.0:1");
    assert_eq!(said(files, env), "http://127.0.0.1:2");
    assert_eq!(asked(None, &[], &[(LISTEN, "")]), None, "none listens");
}
