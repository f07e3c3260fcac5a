//! Templates: compiled once, then rendered for each message.
//!
//! What is wrong with a template is found when it is compiled: a variable or a filter that does not exist, a secret
//! that is not named in full. What a message lacks is found when it is rendered.

use std::collections::BTreeSet;
use std::fmt;

use minijinja::{AutoEscape, Environment, Error, UndefinedBehavior};

use super::fault::{self, is_null, render_error, unreadable};
use super::secret::{self, is_secret, names_in};
use super::{About, Context, WrongLimitTemplate, WrongTemplate, filters};
use sluiced_ports::downstream::UnfitReason;

/// A compiled template, by its name: `url`, `body`, `header x-tenant`.
#[derive(Clone, Debug)]
pub struct Template(String);

/// Compiled templates for the same messages.
pub struct Templates {
    pub(super) environment: Environment<'static>,
    pub(super) about: About,
    /// Which variables any template uses.
    pub(super) used: Vec<&'static str>,
    /// Which secrets any template names.
    secrets: BTreeSet<String>,
}

/// Everything that is wrong with a template: unknown variables by name, then filters.
#[must_use]
pub fn check(source: &str, about: About) -> Vec<WrongTemplate> {
    let mut templates = Templates::about(about);
    let compiled = templates
        .environment
        .add_template_owned(CHECKED.to_owned(), source.to_owned())
        .and_then(|()| templates.variables(CHECKED));
    match compiled {
        Err(error) => vec![unreadable(&error)],
        Ok(variables) => variables
            .into_iter()
            .filter(|name| !about.fields().any(|field| field == name))
            .map(|name| WrongTemplate::Variable { name, about })
            .chain(secret::misnamed(&templates.environment, CHECKED))
            .chain(fault::misused(&templates.environment, source))
            .collect(),
    }
}

/// The name of a template that is only checked.
const CHECKED: &str = "template";

impl Template {
    /// What errors call it.
    pub(super) fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Templates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Templates")
            .field("used", &self.used)
            .finish_non_exhaustive()
    }
}

impl Default for Templates {
    fn default() -> Self {
        Self::new()
    }
}

impl Templates {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::about(About::Message)
    }

    /// None yet, for templates about this.
    #[must_use]
    pub fn about(about: About) -> Self {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::SemiStrict);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_formatter(filters::print);
        environment.add_filter("urlencode", filters::urlencode);
        environment.add_filter("tojson", filters::tojson);
        environment.add_filter("pointer", filters::pointer);
        environment.add_filter("host", filters::host);
        environment.add_filter("sms_segments", filters::sms_segments);
        // It prints the whole context, message and all.
        environment.remove_global("debug");
        Self {
            environment,
            about,
            used: Vec::new(),
            secrets: BTreeSet::new(),
        }
    }

    /// None yet, for keys and costs of limits. A missing field is an error even in an `if`: a message without
    /// its field must not pass uncounted.
    #[must_use]
    pub fn of_limits() -> Self {
        let mut templates = Self::new();
        templates
            .environment
            .set_undefined_behavior(UndefinedBehavior::Strict);
        templates
    }

    /// Compiles the template that errors call `name`. The same name again replaces it.
    ///
    /// # Errors
    /// The first fault that [`check`] finds.
    pub fn add(&mut self, name: &str, source: &str) -> Result<Template, WrongTemplate> {
        self.environment
            .add_template_owned(name.to_owned(), source.to_owned())
            .map_err(|error| unreadable(&error))?;
        let variables = self.variables(name).map_err(|error| unreadable(&error))?;
        if let Some(wrong) = fault::misused(&self.environment, source).into_iter().next() {
            return Err(wrong);
        }
        for variable in variables {
            let field = self.about.fields().find(|field| *field == variable);
            let Some(field) = field else {
                return Err(WrongTemplate::Variable {
                    name: variable,
                    about: self.about,
                });
            };
            if !self.used.contains(&field) {
                self.used.push(field);
            }
        }
        if let Some(wrong) = secret::misnamed(&self.environment, name).next() {
            return Err(wrong);
        }
        self.secrets.extend(names_in(&self.environment, name));
        Ok(Template(name.to_owned()))
    }

    /// Compiles the template of a key of the configuration, and names it after that.
    pub(super) fn add_key(
        &mut self,
        key: String,
        source: &str,
    ) -> Result<Template, WrongLimitTemplate> {
        let added = self.add(&key, source);
        added.map_err(|wrong| WrongLimitTemplate { key, wrong })
    }

    /// Whether any of them names this variable.
    #[must_use]
    pub fn uses(&self, name: &str) -> bool {
        self.used.contains(&name)
    }

    /// The secrets that they name.
    #[must_use]
    pub const fn secrets(&self) -> &BTreeSet<String> {
        &self.secrets
    }

    /// Whether this template names a secret.
    #[must_use]
    pub fn is_secret(&self, template: &Template) -> bool {
        is_secret(&self.environment, template.name())
    }

    /// Whether this template uses a variable.
    pub fn takes(&self, template: &Template, variable: &str) -> bool {
        let variables = self.variables(template.name());
        variables.is_ok_and(|all| all.iter().any(|name| name == variable))
    }

    /// The variables that a template takes from its context, and the fields of `answer` that it uses, in
    /// order. A field that is looked up as an index is not found.
    fn variables(&self, name: &str) -> Result<Vec<String>, Error> {
        let template = self.environment.get_template(name)?;
        let mut variables: Vec<_> = template
            .undeclared_variables(false)
            .into_iter()
            .filter(|variable| !self.environment.globals().any(|(name, _)| name == variable))
            .collect();
        if self.about == About::Answer {
            let nested = template.undeclared_variables(true);
            let fields = nested.iter().filter_map(|path| {
                let field = path.strip_prefix("answer.")?;
                Some(format!("answer.{}", field.split('.').next()?))
            });
            variables.extend(fields);
        }
        variables.sort();
        variables.dedup();
        Ok(variables)
    }

    /// Whether a template prints a `null` for a message.
    pub(super) fn gives_none(&self, template: &Template, context: &Context) -> bool {
        let compiled = self.environment.get_template(&template.0);
        let rendered = compiled.and_then(|compiled| compiled.render(context.0.clone()));
        rendered.is_err_and(|error| is_null(&error))
    }

    /// The text that a template makes from a message.
    ///
    /// # Errors
    /// When the message lacks what the template needs.
    pub fn render(&self, template: &Template, context: &Context) -> Result<String, UnfitReason> {
        let undecodable = |why| UnfitReason {
            what: template.0.clone(),
            why,
        };
        let compiled = self
            .environment
            .get_template(&template.0)
            .map_err(|error| undecodable(render_error(&error, "")))?;
        compiled
            .render(context.0.clone())
            .map_err(|error| undecodable(render_error(&error, compiled.source())))
    }
}
