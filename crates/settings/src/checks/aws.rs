//! Credentials of AWS: in one place, with the keys of that place and no others.

use super::Checks;
use crate::path::KeyPath;
use crate::types::{AwsCredentials, AwsSigv4};

impl Checks<'_> {
    pub(super) fn aws(&mut self, path: &KeyPath, aws: &AwsSigv4) {
        let [kind, file, profile] = path.all(["credentials", "credentials_file", "profile"]);
        let metadata = path.join("metadata_url");
        if aws.credentials != AwsCredentials::Instance && self.is_written(&metadata) {
            let message = "only credentials = \"instance\" asks there; take it out, or write that";
            self.error([metadata, kind.clone()], message);
        }
        if aws.credentials != AwsCredentials::File {
            for key in [file, profile] {
                if self.is_written(&key) {
                    let message =
                        "only credentials = \"file\" reads it; take it out, or write that";
                    self.error([key, kind.clone()], message);
                }
            }
        } else if aws.credentials_file.is_none() {
            let message = "no credentials_file; write one such as \"credential:aws\", or say with credentials where else they are";
            self.error([path.clone(), file, kind], message);
        } else {
            self.secret_file(&file, aws.credentials_file.as_deref());
        }
    }
}
