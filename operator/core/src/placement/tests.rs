use super::*;
use k8s_openapi::api::core::v1::Node;
use proptest::prelude::*;
use serde_json::json;

fn node(name: &str, allocatable: Value, more: Value) -> NodeView {
    let mut node = json!({"metadata": {"name": name, "labels": {}}, "spec": {}, "status": {"allocatable": allocatable}});
    for (field, value) in more.as_object().into_iter().flatten() {
        match field.as_str() {
            "labels" => node["metadata"]["labels"] = value.clone(),
            _ => node["spec"][field] = value.clone(),
        }
    }
    let node: Node = serde_json::from_value(node).expect("a node of the test");
    NodeView::of(&node)
}

fn pod(spec: Value) -> Value {
    json!({"spec": spec})
}

fn engine(resources: Value) -> Value {
    json!({"name": "engine", "resources": resources})
}

fn told(template: &Value, nodes: &[NodeView]) -> String {
    verdict(template, nodes)
        .expect_err("no node fits")
        .to_string()
}

#[test]
fn a_pod_that_no_node_can_hold_is_told_with_the_arithmetic() {
    let cpu = |n: &str| node(n, json!({"cpu": "8", "memory": "32Gi"}), json!({}));
    let gpu = |n: &str, count: &str| {
        node(
            n,
            json!({"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": count}),
            json!({}),
        )
    };
    let nodes = [cpu("a"), cpu("b"), gpu("c", "4"), gpu("d", "2")];
    let wants = |resources: Value| pod(json!({"containers": [engine(resources)]}));
    assert_eq!(
        told(&wants(json!({"limits": {"nvidia.com/gpu": "8"}})), &nodes),
        "needs 8 nvidia.com/gpu: of 4 nodes, 2 carry nvidia.com/gpu and the largest has 4"
    );
    assert_eq!(
        told(&wants(json!({"requests": {"amd.com/gpu": "1"}})), &nodes),
        "needs 1 amd.com/gpu: of 4 nodes, none carries amd.com/gpu"
    );
    assert_eq!(
        told(
            &wants(json!({"requests": {"memory": "100Gi", "cpu": "8500m"}})),
            &nodes
        ),
        "needs 8500m cpu: of 4 nodes, 4 carry cpu and the largest has 8; needs 100Gi memory: of 4 nodes, 4 carry memory and the largest has 64Gi"
    );
    assert_eq!(
        verdict(&wants(json!({"limits": {"nvidia.com/gpu": "4"}})), &nodes),
        Ok(())
    );
    assert_eq!(
        verdict(&wants(json!({"limits": {"nvidia.com/gpu": "8"}})), &[]),
        Ok(())
    );
}

#[test]
fn enough_in_sum_is_not_enough_on_one_node() {
    let nodes = [
        node("a", json!({"cpu": "32", "memory": "8Gi"}), json!({})),
        node("b", json!({"cpu": "4", "memory": "64Gi"}), json!({})),
    ];
    let template =
        pod(json!({"containers": [engine(json!({"requests": {"cpu": "8", "memory": "16Gi"}}))]}));
    let words = told(&template, &nodes);
    assert!(words.contains("8 cpu, 16Gi memory on one node"), "{words}");
}

#[test]
fn labels_taints_and_cordons_close_nodes() {
    let room = || json!({"cpu": "8"});
    let taint = json!({"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]});
    let nodes = [
        node("plain", room(), json!({})),
        node(
            "tainted",
            room(),
            json!({"labels": {"zone": "a"}, "taints": taint["taints"]}),
        ),
        node(
            "cordoned",
            room(),
            json!({"labels": {"zone": "a"}, "unschedulable": true}),
        ),
    ];
    let with = |more: Value| {
        let mut spec = json!({"containers": [engine(json!({"requests": {"cpu": "1"}}))], "nodeSelector": {"zone": "a"}});
        for (field, value) in more.as_object().into_iter().flatten() {
            spec[field] = value.clone();
        }
        pod(spec)
    };
    assert_eq!(
        told(&with(json!({})), &nodes),
        "fits no node: of 3 nodes, 1 is not labelled as its node selector and affinity ask, 1 is tainted by what it does not tolerate (gpu), 1 is cordoned"
    );
    let tolerates = |t: Value| verdict(&with(json!({"tolerations": [t]})), &nodes).is_ok();
    assert!(tolerates(json!({"key": "gpu", "operator": "Exists"})));
    assert!(tolerates(
        json!({"key": "gpu", "value": "yes", "effect": "NoSchedule"})
    ));
    assert!(tolerates(json!({"operator": "Exists"})));
    assert!(!tolerates(json!({"key": "gpu", "value": "no"})));
    assert!(!tolerates(
        json!({"key": "gpu", "operator": "Exists", "effect": "NoExecute"})
    ));
}

#[test]
fn taints_of_a_node_that_is_unwell_pass_by_themselves() {
    let unwell =
        json!({"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]});
    let nodes = [node("a", json!({"cpu": "8"}), unwell)];
    assert_eq!(verdict(&pod(json!({"containers": []})), &nodes), Ok(()));
}

#[test]
fn every_operator_of_affinity_is_understood() {
    let nodes = [node(
        "a",
        json!({}),
        json!({"labels": {"gpu": "H100", "memory": "80"}}),
    )];
    let fits = |requirement: Value| {
        let terms = json!([{"matchExpressions": [requirement]}]);
        let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}});
        verdict(
            &pod(json!({"containers": [], "affinity": affinity})),
            &nodes,
        )
        .is_ok()
    };
    for (requirement, expected) in [
        (
            json!({"key": "gpu", "operator": "In", "values": ["H100", "H200"]}),
            true,
        ),
        (
            json!({"key": "gpu", "operator": "In", "values": ["A100"]}),
            false,
        ),
        (
            json!({"key": "gpu", "operator": "NotIn", "values": ["H100"]}),
            false,
        ),
        (
            json!({"key": "other", "operator": "NotIn", "values": ["x"]}),
            true,
        ),
        (json!({"key": "gpu", "operator": "Exists"}), true),
        (json!({"key": "other", "operator": "Exists"}), false),
        (json!({"key": "other", "operator": "DoesNotExist"}), true),
        (
            json!({"key": "memory", "operator": "Gt", "values": ["79"]}),
            true,
        ),
        (
            json!({"key": "memory", "operator": "Lt", "values": ["80"]}),
            false,
        ),
        (
            json!({"key": "gpu", "operator": "Gt", "values": ["1"]}),
            false,
        ),
    ] {
        assert_eq!(fits(requirement.clone()), expected, "{requirement}");
    }
}

#[test]
fn a_pod_needs_what_its_hungriest_moment_needs() {
    let cpu = |amount: &str| json!({"requests": {"cpu": amount}});
    let template = pod(json!({
        "initContainers": [
            {"name": "binary", "resources": cpu("7")},
            {"name": "lock", "restartPolicy": "Always", "resources": cpu("1")},
            {"name": "late", "resources": cpu("6")}
        ],
        "containers": [{"name": "engine", "resources": cpu("4")}, {"name": "sidecar", "resources": cpu("2500m")}]
    }));
    // 7 alone, 1 + 6, and 1 + 4 + 2.5 together.
    let holds =
        |amount: &str| verdict(&template, &[node("a", json!({"cpu": amount}), json!({}))]).is_ok();
    assert!(holds("7500m") && !holds("7499m"));
}

#[test]
fn what_is_built_for_a_service_can_be_judged() {
    let service = crate::testing::checked(json!({
        "engine": {"executor": "simulated"},
        "hardware": {"accelerator": {"kind": "nvidia", "count": 2, "products": ["H100"]}}
    }));
    let setup = crate::build::Setup {
        images: crate::build::Images {
            engine: "e".into(),
            pull_policy: "Always".into(),
        },
        model_cache: None,
    };
    let children = crate::build::build(&service, &setup);
    let gpus = |count: &str| {
        let more = json!({"labels": {"nvidia.com/gpu.product": "H100"}, "taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]});
        node(
            "g",
            json!({"cpu": "8", "memory": "8Gi", "nvidia.com/gpu": count}),
            more,
        )
    };
    assert_eq!(verdict(children.pod_template(), &[gpus("2")]), Ok(()));
    assert!(told(children.pod_template(), &[gpus("1")]).contains("needs 2 nvidia.com/gpu"));
}

proptest! {
    /// A node with more of everything never turns yes to no, and neither does one more node.
    #[test]
    fn more_never_makes_a_pod_fit_less(cpu in 1_u32..16, memory in 1_u32..16, gpu in 0_u32..4,
        nodes in proptest::collection::vec((0_u32..16, 0_u32..16, 0_u32..4), 1..4), more in (0_u32..4, 0_u32..4, 0_u32..4)) {
        let template = pod(json!({"containers": [engine(json!({
            "requests": {"cpu": cpu.to_string(), "memory": format!("{memory}Gi")}, "limits": {"nvidia.com/gpu": gpu.to_string()}}))]}));
        let of = |(c, m, g): (u32, u32, u32)| node("n", json!({"cpu": c.to_string(), "memory": format!("{m}Gi"), "nvidia.com/gpu": g.to_string()}), json!({}));
        let small: Vec<NodeView> = nodes.iter().map(|n| of(*n)).collect();
        let fits = nodes.iter().any(|(c, m, g)| *c >= cpu && *m >= memory && *g >= gpu);
        prop_assert_eq!(verdict(&template, &small).is_ok(), fits, "against plain arithmetic");
        let mut larger = nodes.clone();
        larger[0] = (larger[0].0 + more.0, larger[0].1 + more.1, larger[0].2 + more.2);
        let larger: Vec<NodeView> = larger.into_iter().map(of).collect();
        prop_assert!(!fits || verdict(&template, &larger).is_ok());
        let joined: Vec<NodeView> = small.into_iter().chain([of(more)]).collect();
        prop_assert!(!fits || verdict(&template, &joined).is_ok());
    }
}
