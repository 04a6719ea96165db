//! Faults of the cluster around the operator, each brought about on the real local cluster.
//!
//! Run by `./test e2e [FILTER]`. Each test has an operator of its own: a process of this machine with the rights of the
//! installed one, which rests meanwhile, and between it and the API server a proxy that does what the fault is. Which kind of
//! fault is tested where: `README.md` beside this file.
//!
//! Most tests run at once, for most of their time is waiting. Those that take the API server or the definition of the resource
//! away from everybody run after them, one at a time.

#[path = "../cluster/bed/mod.rs"]
#[expect(dead_code, reason = "the other tests use more of it")]
mod bed;
#[path = "../cluster/file_server.rs"]
#[expect(dead_code, reason = "the other tests use more of it")]
mod file_server;
#[path = "../cluster/manifests.rs"]
mod manifests;
#[path = "../cluster/model_server.rs"]
mod model_server;
mod stage;

mod api_server;
mod children;
mod clock;
mod definition;
mod leaders;
mod namespaces;
mod node_cache;
mod objects;
mod peers;
mod watches;
mod writes;

use std::process::ExitCode;

use anyhow::{Context, Result};
use libtest_mimic::{Arguments, Trial};
use pagoda_e2e::cluster::Cluster;
use pagoda_e2e::installed_operator::{rest_installed, wake_installed};
use pagoda_e2e::operator_process::{allow_leases, forbid_leases};
use pagoda_e2e::progress::Progress;

/// Tests at a time, unless the command line says otherwise.
const THREADS: usize = 8;

/// Names each function as the test that it is.
macro_rules! trials {
    ($($module:ident: $($test:ident),+ $(,)?;)+) => {
        vec![$($(Trial::test(
            concat!(stringify!($module), "::", stringify!($test)),
            || { $module::$test(); Ok(()) },
        )),+),+]
    };
}

fn at_once() -> Vec<Trial> {
    // The longest first, so that none begins when the others are done.
    trials! {
        watches:
            a_watch_that_goes_silent_is_noticed;
        node_cache:
            pods_of_a_node_download_a_model_once_and_a_later_one_not_at_all;
        leaders:
            a_leader_that_was_stopped_for_longer_than_its_lease_wakes_writes_nothing_and_ends;
        clock:
            a_clock_that_jumps_by_an_hour_costs_neither_the_lease_nor_a_write;
        api_server:
            an_api_server_that_refuses_connections_for_a_minute_finds_the_operator_going_on_where_it_stopped,
            an_operator_that_is_never_answered_ends_by_itself_and_its_successor_catches_up;
        writes:
            conflicts_on_every_write_for_a_minute_are_outlived_without_a_hot_loop,
            too_many_requests_on_every_write_for_a_minute_are_outlived_without_a_hot_loop,
            a_status_that_is_refused_for_a_while_is_told_in_the_end,
            refused_leases_for_a_minute_end_the_operator_and_its_successor_leads,
            server_errors_and_lost_answers_end_in_the_same_children;
        watches:
            a_watch_that_closes_is_cut_or_is_gone_misses_nothing,
            watches_that_are_gone_again_and_again_are_begun_anew_without_a_hot_loop;
        children:
            each_child_that_is_deleted_or_edited_is_put_right,
            a_child_that_another_takes_over_is_left_to_them_and_said_in_a_condition,
            a_foreign_object_under_a_childs_name_is_refused_and_never_touched,
            what_an_earlier_service_of_the_name_left_behind_is_taken_over;
        namespaces:
            a_namespace_that_is_terminating_costs_no_hot_loop_and_hinders_no_other,
            an_exceeded_quota_of_children_is_said_and_heals_when_it_is_raised,
            an_exceeded_quota_of_pods_is_said_and_heals_when_it_is_raised;
        objects:
            a_stuck_finalizer_of_a_third_party_costs_nothing_and_hinders_nobody,
            a_hundred_applies_of_the_same_manifest_write_nothing;
        peers:
            a_number_of_pods_that_somebody_set_survives_every_other_change,
            the_scale_subresource_selects_the_pods_of_the_service_and_no_others,
            a_child_whose_selector_cannot_be_changed_is_replaced_or_said_and_never_hammered,
            a_service_with_the_longest_name_has_all_its_children,
            a_service_that_is_deleted_while_no_operator_runs_leaves_nothing,
            pods_come_back_while_no_operator_runs_and_no_webhook_is_asked;
        leaders:
            a_killed_leader_is_followed_by_the_one_that_waits,
            an_operator_that_starts_again_writes_nothing;
    }
}

fn one_at_a_time() -> Vec<Trial> {
    trials! {
        definition:
            a_definition_that_is_upgraded_under_a_running_operator_changes_no_child,
            a_definition_that_is_newer_than_the_operator_costs_nothing,
            one_malformed_object_among_a_hundred_hinders_none_of_them;
        api_server:
            versions_that_etcd_has_compacted_are_read_anew,
            a_killed_api_server_is_outlived_and_requests_go_on_meanwhile;
    }
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(THREADS);
    let wanted = |trials: &[Trial]| trials.iter().any(|trial| !arguments.is_filtered_out(trial));
    let (first, then) = (at_once(), one_at_a_time());
    if arguments.list || !(wanted(&first) || wanted(&then)) {
        return libtest_mimic::run(&arguments, first.into_iter().chain(then).collect()).exit_code();
    }
    match beside_a_resting_operator(|| {
        let first = libtest_mimic::run(&arguments, first);
        arguments.test_threads = Some(1);
        let then = libtest_mimic::run(&arguments, then);
        !first.has_failed() && !then.has_failed()
    }) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:?}");
            ExitCode::FAILURE
        }
    }
}

/// Runs `tests` while the installed operator rests, and brings it back however they end.
fn beside_a_resting_operator(tests: impl FnOnce() -> bool) -> Result<bool> {
    let runtime = tokio::runtime::Runtime::new()?;
    let (client, rested) = runtime
        .block_on(async {
            let client = Cluster::local()?.client().await?;
            allow_leases(&client).await?;
            let rested = rest_installed(&client).await?;
            anyhow::Ok((client, rested))
        })
        .context("./test e2e brings the cluster up first")?;
    let passed = tests();
    // A test that failed may have left the API server dead.
    Cluster::local()?.up(&Progress::start())?;
    runtime.block_on(async {
        forbid_leases(&client).await?;
        wake_installed(&client, rested).await
    })?;
    Ok(passed)
}
