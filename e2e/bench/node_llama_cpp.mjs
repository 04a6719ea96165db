// llama.cpp through node-llama-cpp, which batches several sequences of one context: one JSON line on standard output.
//
//   node node_llama_cpp.mjs speed   MODULES MODEL THREADS PROMPT_TOKENS DECODE_TOKENS REPEATS
//   node node_llama_cpp.mjs streams MODULES MODEL THREADS PROMPT_TOKENS ANSWER_TOKENS STREAMS
//
// `speed` is the work of `pagoda-engine bench`: one sequence, a prompt of fixed tokens, then single tokens after it; medians.
// `streams` starts STREAMS sequences in the same moment, each with a prompt of its own, and takes the time of every token: the
// work of as many clients of a server, less the server. Flash attention is on and the arithmetic is warmed up first.
import {join} from "node:path";
import {pathToFileURL} from "node:url";

const [work, modules, modelPath, ...numbers] = process.argv.slice(2);
const [threads, promptTokens, answerTokens, count] = numbers.map(Number);
if (!["speed", "streams"].includes(work) || numbers.length !== 4 || numbers.some((text) => !(Number(text) > 0))) {
    console.error("usage: node_llama_cpp.mjs speed|streams MODULES MODEL THREADS PROMPT_TOKENS ANSWER_TOKENS COUNT");
    process.exit(2);
}

const {getLlama} = await import(pathToFileURL(join(modules, "node-llama-cpp/dist/index.js")));
const llama = await getLlama({gpu: false, build: "never", maxThreads: threads, logLevel: "error", progressLogs: false});
const model = await llama.loadModel({modelPath, gpuLayers: 0});
const context = await model.createContext({
    contextSize: promptTokens + answerTokens + 8,
    batchSize: 512,
    sequences: work === "streams" ? count : 1,
    threads: {ideal: threads, min: threads},
    flashAttention: true,
});

// Ids that every vocabulary has; which ones does not change the work. The benchmark's own streams have the same.
const prompt = (stream, tokens) => Array.from({length: tokens}, (_, at) => 1000 + ((7919 * at + 104729 * stream) % 30000));

// Milliseconds since `began` at each token of the answer.
async function answer(stream, tokens, answers, began) {
    const sequence = context.getSequence();
    const times = [];
    // Its end-of-text token ends nothing here: every answer is as long as asked for.
    for await (const _ of sequence.evaluate(prompt(stream, tokens), {temperature: 0, yieldEogToken: true})) {
        times.push(performance.now() - began);
        if (times.length === answers) break;
    }
    sequence.dispose();
    return times;
}

const median = (values) => {
    const sorted = [...values].sort((a, b) => a - b);
    return (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2;
};

async function speed() {
    const prefill = [], decode = [];
    for (let repeat = 0; repeat < count; repeat++) {
        const times = await answer(0, promptTokens, answerTokens + 1, performance.now());
        prefill.push((promptTokens / times[0]) * 1000);
        decode.push((answerTokens / (times.at(-1) - times[0])) * 1000);
    }
    return {prefill_tokens_per_second: median(prefill), decode_tokens_per_second: median(decode)};
}

async function streams() {
    const began = performance.now();
    const token_milliseconds = await Promise.all(
        Array.from({length: count}, (_, stream) => answer(stream + 1, promptTokens, answerTokens, began)));
    return {token_milliseconds};
}

await answer(0, Math.min(64, promptTokens), 4, performance.now());
const figures = work === "speed" ? await speed() : await streams();
console.log(JSON.stringify({...figures, system_info: llama.systemInfo.trim()}));
process.exit(0);
