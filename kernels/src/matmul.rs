//! Products of activations with packed weights: a stream over the weights for one row, a blocked product for many.
//!
//! One output element is one accumulator that takes its blocks of 32 in order: `acc = fma(dot, weight scale * activation
//! scale, acc)`, then `acc = fma(minimum, activation sum, acc)` where the format has minimums; and a second one that does
//! the same for the second bytes of the row's coarse blocks, added last. Nothing in that depends on how many rows go
//! together, on the thread, or on the instruction set.

use std::mem::MaybeUninit;
use std::ops::Range;

use crate::activation::{BLOCK, BlockWriter, GROUP_ROWS, Q8Block, QuantisedRows};
use crate::buffer::SharedMut;
use crate::cpu::{Cpu, Kernel};
use crate::format::Format;
use crate::math::{Activation, store_partial};
use crate::pack::{PANEL_COLUMNS, PackedMatrix};
use crate::pool::ThreadPool;
use crate::simd::{LANES, Simd};

mod blocks;

use blocks::{
    FiveBits, Levels, Nibbles, Q2K, STORED, ScaleAndMin, SignedBytes, Simple, SixBits, ThreeBits,
    TwoScales, blocks_panel,
};

/// Rows of activations: bytes for quantised weights, `f32` for float weights; what no weight asks for may be empty.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// Number of rows.
    pub rows: usize,
    /// Values in a row.
    pub k: usize,
    /// `rows * k` values.
    pub f32: &'a [f32],
    /// `rows` rows of `k`.
    pub q8: Option<&'a QuantisedRows>,
}

/// Where products go.
pub enum Output<'a> {
    /// Overwrites rows of as many values as the weights have outputs together.
    Store(&'a mut [f32]),
    /// Adds to them.
    Add(&'a mut [f32]),
    /// Made to hold the rows ([`gated`] only).
    Quantise(&'a mut QuantisedRows),
}

/// Activation bytes that stay in a core's second-level cache while all weights pass by.
const ROW_CHUNK_BYTES: usize = 384 << 10;
/// Weight bytes that stay there while rows pass by.
const WEIGHT_CHUNK_BYTES: usize = 128 << 10;
/// Rows from which work is taken dynamically; below, one contiguous share of the weights a thread streams best.
const DYNAMIC_ROWS: usize = 16;
/// Multiply-adds below which waking threads costs more than it saves.
const SERIAL_WORK: usize = 32 << 10;

/// Products of every row of `input` with each of `weights`, whose outputs lie side by side in a row of `out`.
///
/// # Panics
/// When shapes do not fit, the input lacks a form that a weight's format needs, or `out` is [`Output::Quantise`].
pub fn matmul(
    cpu: Cpu,
    pool: &ThreadPool,
    weights: &[&PackedMatrix],
    input: Input<'_>,
    out: Output<'_>,
) {
    for w in weights {
        check_input(w, &input);
    }
    let width: usize = weights.iter().map(|w| w.n()).sum();
    let (out, add) = match out {
        Output::Store(out) => (out, false),
        Output::Add(out) => (out, true),
        Output::Quantise(_) => panic!("a plain product is not quantised"),
    };
    assert_eq!(out.len(), input.rows * width, "one output a row and column");
    let job = Job {
        weights,
        input,
        width,
        task: Task::Linear {
            out: SharedMut::new(out),
            add,
        },
    };
    job.spread(cpu, pool, weights.iter().map(|w| w.panels()).sum());
}

/// `activation(x * gate) * (x * up)` for every row of `input`: rows of `gate.n()` values, or blocks.
///
/// # Panics
/// When shapes do not fit, or `out` is [`Output::Add`].
pub fn gated(
    cpu: Cpu,
    pool: &ThreadPool,
    activation: Activation,
    gate: &PackedMatrix,
    up: &PackedMatrix,
    input: Input<'_>,
    out: Output<'_>,
) {
    let weights = [gate, up];
    for w in weights {
        check_input(w, &input);
    }
    let width = gate.n();
    assert_eq!(width, up.n(), "gate and up have as many outputs");
    let task = match out {
        Output::Store(out) => {
            assert_eq!(out.len(), input.rows * width, "one output a row and column");
            Task::GatedF32(SharedMut::new(out), activation)
        }
        Output::Quantise(out) => {
            assert!(width.is_multiple_of(BLOCK), "whole blocks");
            out.resize(input.rows, width);
            let task = Task::GatedQ8(out.writer(), activation);
            Job {
                weights: &weights,
                input,
                width,
                task,
            }
            .spread(cpu, pool, width / BLOCK);
            return out.mark(pool);
        }
        Output::Add(_) => panic!("a gated product is not added"),
    };
    Job {
        weights: &weights,
        input,
        width,
        task,
    }
    .spread(cpu, pool, width.div_ceil(BLOCK));
}

fn check_input(weights: &PackedMatrix, input: &Input<'_>) {
    assert_eq!(weights.k(), input.k, "rows are as deep as the weights");
    if weights.format().is_quantised() {
        let extents = input.q8.map(|q8| (q8.rows(), q8.k()));
        assert_eq!(
            extents,
            Some((input.rows, input.k)),
            "quantised weights need quantised rows"
        );
    } else {
        assert_eq!(
            input.f32.len(),
            input.rows * input.k,
            "float weights need float rows"
        );
    }
}

#[derive(Clone, Copy)]
enum Task {
    /// A unit is one panel.
    Linear {
        out: SharedMut<f32>,
        add: bool,
    },
    /// A unit is two panels of the gate and two of the other: 32 outputs.
    GatedF32(SharedMut<f32>, Activation),
    GatedQ8(BlockWriter, Activation),
}

#[derive(Clone, Copy)]
struct Job<'a> {
    weights: &'a [&'a PackedMatrix],
    input: Input<'a>,
    width: usize,
    task: Task,
}

impl Job<'_> {
    fn spread(&self, cpu: Cpu, pool: &ThreadPool, units: usize) {
        let Input { rows, k, .. } = self.input;
        if rows < DYNAMIC_ROWS {
            let grain = if rows * k * self.width < SERIAL_WORK {
                units
            } else {
                1
            };
            return pool.split(units, grain, |units| {
                cpu.execute_dots(Part {
                    job: self,
                    units,
                    rows: 0..rows,
                });
            });
        }
        let chunk =
            (ROW_CHUNK_BYTES / (k / BLOCK * size_of::<Q8Block>()).max(1)).clamp(8, 512) & !7;
        let chunks = rows.div_ceil(chunk);
        // About eight parts a thread and chunk of rows, so that a thread held up elsewhere is made up for.
        let step = units.div_ceil(8 * pool.threads()).max(1);
        let steps = units.div_ceil(step);
        pool.share(chunks * steps, |_, item| {
            let (chunk_index, step_index) = (item / steps, item % steps);
            let units = step_index * step..((step_index + 1) * step).min(units);
            let rows = chunk_index * chunk..((chunk_index + 1) * chunk).min(rows);
            cpu.execute_dots(Part {
                job: self,
                units,
                rows,
            });
        });
    }

    /// Units whose weights stay in a core's second-level cache beside the rows.
    fn units_cached(&self) -> usize {
        let panels = if matches!(self.task, Task::Linear { .. }) {
            1
        } else {
            4
        };
        let largest = self
            .weights
            .iter()
            .map(|w| w.bytes() / w.panels())
            .max()
            .unwrap_or(1);
        (WEIGHT_CHUNK_BYTES / (panels * largest)).max(1)
    }

    /// The matrix and panel that hold unit `unit` of a linear task, and the panel's first output.
    #[inline(always)]
    fn locate(&self, mut unit: usize) -> (&PackedMatrix, usize, usize) {
        let mut column = 0;
        for &matrix in &self.weights[..self.weights.len() - 1] {
            if unit < matrix.panels() {
                return (matrix, unit, column + unit * PANEL_COLUMNS);
            }
            unit -= matrix.panels();
            column += matrix.n();
        }
        let last = self.weights[self.weights.len() - 1];
        (last, unit, column + unit * PANEL_COLUMNS)
    }
}

/// Some units of a job for some rows, on one thread.
struct Part<'a> {
    job: &'a Job<'a>,
    units: Range<usize>,
    rows: Range<usize>,
}

impl Kernel for Part<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        // Weights a second-level cache holds go outside, rows within them, then the weights again: a tile of rows stays in
        // the first-level cache, and memory delivers every weight once.
        let block = self.job.units_cached();
        for start in self.units.clone().step_by(block) {
            let units = start..(start + block).min(self.units.end);
            let mut row = self.rows.start;
            while row < self.rows.end {
                // SAFETY: rows and units lie within the job, whose shapes were checked; each output belongs to one unit
                // and row.
                row += unsafe {
                    match self.rows.end - row {
                        8.. if S::ROWS >= 8 => self.rows_of_units::<S, 8>(units.clone(), row),
                        4.. if S::ROWS >= 4 => self.rows_of_units::<S, 4>(units.clone(), row),
                        2.. if S::ROWS >= 4 => self.rows_of_units::<S, 2>(units.clone(), row),
                        _ => self.rows_of_units::<S, 1>(units.clone(), row),
                    }
                };
            }
        }
    }
}

impl Part<'_> {
    /// `R` rows from `row` on of `units`; returns `R`.
    #[inline(always)]
    unsafe fn rows_of_units<S: Simd, const R: usize>(
        &self,
        units: Range<usize>,
        row: usize,
    ) -> usize {
        debug_assert!(
            row % GROUP_ROWS + R <= GROUP_ROWS,
            "a tile's flags share a byte"
        );
        for unit in units {
            // SAFETY: as in `run`.
            unsafe { self.rows_of_unit::<S, R>(unit, row) };
        }
        R
    }

    /// `R` rows from `row` on of one unit.
    #[inline(always)]
    unsafe fn rows_of_unit<S: Simd, const R: usize>(&self, unit: usize, row: usize) {
        let job = self.job;
        // SAFETY: the unit and rows exist, as `run` promises.
        unsafe {
            let (tiles, panels) = match job.task {
                Task::Linear { .. } => {
                    let (matrix, panel, _) = job.locate(unit);
                    (1, [(matrix, panel); 4])
                }
                Task::GatedF32(..) | Task::GatedQ8(..) => {
                    let [gate, up] = [job.weights[0], job.weights[1]];
                    let second = (2 * unit + 1).min(gate.panels() - 1);
                    (
                        4,
                        [
                            (gate, 2 * unit),
                            (up, 2 * unit),
                            (gate, second),
                            (up, second),
                        ],
                    )
                }
            };
            let mut tile = [const { MaybeUninit::<[S::F; R]>::uninit() }; 4];
            for (tile, (matrix, panel)) in tile.iter_mut().zip(panels).take(tiles) {
                tile.write(panel_product::<S, R>(matrix, panel, &job.input, row));
            }
            // The first `tiles` tiles were written, and a linear task reads one, the others four.
            let read = |i: usize| tile[i].assume_init_ref();
            match job.task {
                Task::Linear { out, add } => {
                    let (matrix, panel, column) = job.locate(unit);
                    let count = (matrix.n() - panel * PANEL_COLUMNS).min(PANEL_COLUMNS);
                    for (r, &x) in read(0).iter().enumerate() {
                        let at = out.at((row + r) * job.width + column);
                        let x = if add {
                            S::add(crate::math::load_partial::<S>(at, count), x)
                        } else {
                            x
                        };
                        store_partial::<S>(at, x, count);
                    }
                }
                Task::GatedF32(out, activation) => {
                    for r in 0..R {
                        for (half, column) in [(0, 2 * unit * LANES), (1, (2 * unit + 1) * LANES)] {
                            if column < job.width {
                                let h = S::mul(
                                    activation.apply::<S>(read(2 * half)[r]),
                                    read(2 * half + 1)[r],
                                );
                                let at = out.at((row + r) * job.width + column);
                                store_partial::<S>(at, h, (job.width - column).min(LANES));
                            }
                        }
                    }
                }
                Task::GatedQ8(out, activation) => {
                    for r in 0..R {
                        let first = S::mul(activation.apply::<S>(read(0)[r]), read(1)[r]);
                        let second = S::mul(activation.apply::<S>(read(2)[r]), read(3)[r]);
                        out.write::<S>(row + r, unit, [first, second]);
                    }
                }
            }
        }
    }
}

/// Products of `R` rows from `row` on with the 16 columns of a panel.
#[inline(always)]
unsafe fn panel_product<S: Simd, const R: usize>(
    matrix: &PackedMatrix,
    panel: usize,
    input: &Input<'_>,
    row: usize,
) -> [S::F; R] {
    let (w, k) = (matrix.panel(panel), matrix.k());
    // SAFETY: the panel holds `k` deep of its format; rows `row..row + R` exist in the form the format needs.
    unsafe {
        let x = input.f32.as_ptr().wrapping_add(row * k);
        match matrix.format() {
            Format::F32 => float_panel::<S, FLOAT, R>(k, x, w),
            Format::F16 => float_panel::<S, HALF, R>(k, x, w),
            Format::Bf16 => float_panel::<S, BRAIN, R>(k, x, w),
            format => {
                let Some(q8) = input.q8 else {
                    unreachable!("`check_input` saw quantised rows")
                };
                let rows = q8.view(row);
                match format {
                    Format::Q8_0 => blocks_panel::<S, Simple<SignedBytes, 0>, R>(w, rows),
                    Format::Q4_0 => blocks_panel::<S, Simple<Nibbles, -8>, R>(w, rows),
                    Format::Q4_1 => blocks_panel::<S, Simple<Nibbles, STORED>, R>(w, rows),
                    Format::Q5_0 => blocks_panel::<S, Simple<FiveBits, -16>, R>(w, rows),
                    Format::Q5_1 => blocks_panel::<S, Simple<FiveBits, STORED>, R>(w, rows),
                    Format::Iq4Nl => blocks_panel::<S, Simple<Levels, 0>, R>(w, rows),
                    Format::Q2K => blocks_panel::<S, Q2K, R>(w, rows),
                    Format::Q3K => blocks_panel::<S, TwoScales<ThreeBits, 4>, R>(w, rows),
                    Format::Q4K => blocks_panel::<S, ScaleAndMin<Nibbles>, R>(w, rows),
                    Format::Q5K => blocks_panel::<S, ScaleAndMin<FiveBits>, R>(w, rows),
                    _ => blocks_panel::<S, TwoScales<SixBits, 32>, R>(w, rows),
                }
            }
        }
    }
}

/// Float formats as parameters. Not closures: what is not inlined is compiled without the instruction set.
const FLOAT: u8 = 0;
const HALF: u8 = 1;
const BRAIN: u8 = 2;

#[inline(always)]
unsafe fn float_panel<S: Simd, const KIND: u8, const R: usize>(
    k: usize,
    x: *const f32,
    w: *const u8,
) -> [S::F; R] {
    // SAFETY: `x` points at `R` rows of `k` values, `w` at `k` vectors of the kind.
    unsafe {
        let mut acc = [S::splat(0.0); R];
        for i in 0..k {
            let w = match KIND {
                FLOAT => S::load(w.cast::<f32>().add(i * LANES)),
                HALF => S::load_f16(w.cast::<u16>().add(i * LANES)),
                _ => S::load_bf16(w.cast::<u16>().add(i * LANES)),
            };
            for (r, acc) in acc.iter_mut().enumerate() {
                *acc = S::fma(S::splat(*x.add(r * k + i)), w, *acc);
            }
        }
        acc
    }
}

#[cfg(test)]
#[path = "matmul/tests.rs"]
mod tests;
