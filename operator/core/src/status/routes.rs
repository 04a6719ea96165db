//! Whether requests find the service: gateways know it, and its names are its own.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use std::collections::{BTreeMap, HashMap};

use super::{ROUTES_READY, conditions::Draft};
use crate::autoscale::GatewayReading;

/// What gateways know of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteView {
    /// Gateways that answered.
    pub answered: u32,
    /// Of those, how many know the service.
    pub knowing: u32,
    /// Names of the service that lead elsewhere.
    pub contested: Vec<Contested>,
}

impl RouteView {
    /// Sums up what each gateway said of the service; `None` for one that did not answer.
    pub fn of(gateways: &[Option<GatewayReading>], contested: Vec<Contested>) -> Self {
        let answered = gateways.iter().flatten();
        let knowing = answered.clone().filter(|g| g.route_pods.is_some());
        Self {
            answered: answered.count() as u32,
            knowing: knowing.count() as u32,
            contested,
        }
    }
}

/// A name that leads to another service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Contested {
    /// The name.
    pub name: String,
    /// Whose it is: `namespace/name`.
    pub owner: String,
}

const LOOKED: [&str; 4] = ["Known", "NameContested", "NoGateway", "Spreading"];

pub(super) fn routes_ready(view: Option<&RouteView>, previous: Option<&Condition>) -> Draft {
    let draft = |status: &str, reason: &str, message: &str| {
        Draft::new(ROUTES_READY, status, reason, message)
    };
    let Some(view) = view else {
        // An operator that just started has not asked yet; what its predecessor heard stands until it has.
        return previous
            .and_then(|c| Draft::again(ROUTES_READY, c, &LOOKED))
            .unwrap_or_else(|| draft("Unknown", "Starting", "no gateway was asked yet"));
    };
    if let Some(Contested { name, owner }) = view.contested.first() {
        let message = format!(
            "requests for the model {name:?} go to {owner}: choose another name in model.names; NAMESPACE/NAME always leads here"
        );
        return draft("False", "NameContested", &message);
    }
    match (view.answered, view.knowing) {
        (0, _) => draft("Unknown", "NoGateway", "no gateway answers"),
        (answered, knowing) if knowing < answered => draft(
            "False",
            "Spreading",
            "not every gateway knows the service yet",
        ),
        _ => draft("True", "Known", "the gateways know the service"),
    }
}

/// Which service each name leads to, by the gateways' own rule: a name belongs to the oldest of those who claim it
/// (creation, then `namespace/name`), and `namespace/name` of a service is always its own.
#[derive(Clone, Debug, Default)]
pub struct NameIndex {
    /// Sorted: the first owns the name. Nearly always there is one.
    claims: HashMap<String, Vec<(i64, String)>>,
    services: BTreeMap<String, (i64, Vec<String>)>,
}

impl NameIndex {
    /// Adds or replaces a service, called `namespace/name`, and returns the others whose names may lead elsewhere now.
    pub fn insert(
        &mut self,
        qualified: &str,
        created_seconds: i64,
        names: &[String],
    ) -> Vec<String> {
        let known = self.services.get(qualified);
        if known.is_some_and(|(created, all)| *created == created_seconds && all == names) {
            return Vec::new();
        }
        let mut touched = self.remove(qualified);
        for name in names {
            let claims = self.claims.entry(name.clone()).or_default();
            touched.extend(claims.iter().map(|(_, other)| other.clone()));
            let claim = (created_seconds, qualified.to_owned());
            if let Err(place) = claims.binary_search(&claim) {
                if claims.is_empty() {
                    claims.reserve_exact(1);
                }
                claims.insert(place, claim);
            }
        }
        let service = (created_seconds, names.to_vec());
        self.services.insert(qualified.to_owned(), service);
        touched.extend(self.claimants(qualified));
        Self::others(touched, qualified)
    }

    /// Removes a service, and returns the others whose names may lead elsewhere now.
    pub fn remove(&mut self, qualified: &str) -> Vec<String> {
        let Some((_, names)) = self.services.remove(qualified) else {
            return Vec::new();
        };
        let mut touched: Vec<String> = self.claimants(qualified).collect();
        for name in names {
            let Some(claims) = self.claims.get_mut(&name) else {
                continue;
            };
            claims.retain(|(_, service)| service != qualified);
            touched.extend(claims.iter().map(|(_, other)| other.clone()));
            if claims.is_empty() {
                self.claims.remove(&name);
            }
        }
        Self::others(touched, qualified)
    }

    /// Names of a service that lead to another one.
    pub fn contested(&self, qualified: &str) -> Vec<Contested> {
        let names = self.services.get(qualified).map(|(_, names)| names);
        names
            .into_iter()
            .flatten()
            .filter_map(|name| {
                let owner = self.owner(name).filter(|owner| *owner != qualified)?;
                Some(Contested {
                    name: name.clone(),
                    owner: owner.to_owned(),
                })
            })
            .collect()
    }

    /// The service that a name leads to: `namespace/name`.
    pub fn owner(&self, name: &str) -> Option<&str> {
        let qualified = self
            .services
            .get_key_value(name)
            .map(|(key, _)| key.as_str());
        qualified.or_else(|| {
            let first = self.claims.get(name)?.first()?;
            Some(first.1.as_str())
        })
    }

    /// Services that claim a text as a name.
    fn claimants(&self, name: &str) -> impl Iterator<Item = String> {
        let claims = self.claims.get(name);
        claims
            .into_iter()
            .flatten()
            .map(|(_, service)| service.clone())
    }

    fn others(mut touched: Vec<String>, qualified: &str) -> Vec<String> {
        touched.retain(|other| other != qualified);
        touched.sort();
        touched.dedup();
        touched
    }
}
