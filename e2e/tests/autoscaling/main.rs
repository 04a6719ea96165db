//! What the autoscaler does when what it knows is wrong, late, partial or nothing. `README.md` says what is tested where.
//!
//! Run by `./test e2e [FILTER]`. The program starts itself again in a sandbox, where every address of a cluster is local, and
//! brings a control plane with fake nodes up there.

mod ground;
mod stage;

mod clock;
mod explain;
mod gateways;
mod hpas;
mod limits;
mod pods;
mod prometheus;
mod restarts;
mod schedules;

use std::process::ExitCode;

use anyhow::Result;
use libtest_mimic::{Arguments, Trial};
use pagoda_e2e::cache::Cache;
use pagoda_e2e::cluster::ControlPlane;
use pagoda_e2e::progress::Progress;
use pagoda_e2e::sandbox;

use ground::Ground;

/// Tests at a time, unless the command line says otherwise: most of their time is waiting.
const THREADS: usize = 4;

/// Names each function as the test that it is.
macro_rules! trials {
    ($ground:expr, $($module:ident: $($test:ident),+ $(,)?;)+) => {
        vec![$($({
            let ground = $ground.clone();
            Trial::test(
                concat!(stringify!($module), "::", stringify!($test)),
                // With every cause, which the error's own short form leaves out.
                move || {
                    let outcome = ground.stage(stringify!($module), $module::$test);
                    outcome.map_err(|error| format!("{error:?}").into())
                },
            )
        }),+),+]
    };
}

fn trials(ground: &Ground) -> Vec<Trial> {
    trials! { ground,
        hpas:
            an_hpa_follows_pagodas_figure_holds_while_nobody_knows_it_and_outlives_a_handover;
        limits:
            pods_that_never_get_ready_are_said_and_no_more_are_asked_for,
            a_quota_that_stops_pods_is_said_and_no_more_are_asked_for,
            a_load_beyond_the_maximum_is_said_and_never_followed_beyond_it;
        restarts:
            an_operator_that_starts_again_in_mid_burst_goes_on_and_removes_nothing,
            an_operator_that_starts_again_in_panic_removes_nothing;
        explain:
            what_was_decided_and_why_stands_in_the_status_the_log_and_the_metrics,
            pods_that_are_to_go_are_marked_first_and_no_others,
            services_that_wake_beyond_the_cap_wait_their_turn_and_say_so;
        clock:
            a_wall_clock_that_is_ten_minutes_off_changes_nothing;
        gateways:
            whatever_is_wrong_with_the_gateway_no_pod_is_removed_and_the_reason_is_said,
            when_everybody_is_silent_nothing_moves_and_the_reason_is_said;
        pods:
            whatever_is_wrong_with_all_pods_none_is_removed_and_the_reason_is_said,
            one_silent_pod_of_ten_lets_the_service_grow_and_not_shrink,
            counters_that_begin_anew_remove_no_pod;
        prometheus:
            a_service_follows_a_real_prometheus_and_holds_its_pods_while_nothing_is_to_be_known,
            a_figure_that_is_only_repeated_removes_no_pod,
            promql_that_yields_no_figure_is_said_in_the_servers_words_and_harms_no_other_service,
            a_service_that_an_hpa_scales_as_well_is_left_alone_until_one_of_them_owns_it,
            an_hpa_that_has_no_business_there_is_said_wherever_it_is,
            whoever_keeps_writing_the_number_of_pods_is_named_and_not_fought;
        schedules:
            a_schedule_holds_its_minimum_and_says_so,
            a_cron_or_time_zone_that_there_is_not_is_refused_in_a_condition;
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error:?}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(THREADS);
    let listed = trials(&Ground::unbuilt());
    let none = listed.iter().all(|trial| arguments.is_filtered_out(trial));
    if arguments.list || none {
        return Ok(libtest_mimic::run(&arguments, listed).exit_code());
    }
    if !sandbox::is_inside() {
        ControlPlane::prepare(&Cache::from_env()?, &Progress::start())?;
        return sandbox::enter();
    }
    let ground = Ground::build()?;
    Ok(libtest_mimic::run(&arguments, trials(&ground)).exit_code())
}
