// onnxruntime-web's WASM backend under Node, speaking the JSON lines of ../peer.py.
// node peer.mjs [FOLDER that holds node_modules; default: this one]
import fs from 'node:fs';
import path from 'node:path';
import readline from 'node:readline';
import { fileURLToPath, pathToFileURL } from 'node:url';

// onnxruntime-web imports its memory, so a look at every constructor call finds it. It has to be in place before the
// library is loaded.
const memories = [];
WebAssembly.Memory = class Memory extends WebAssembly.Memory {
  constructor(descriptor) {
    super(descriptor);
    memories.push(this);
  }
};

const ARRAYS = {
  float32: Float32Array,
  float64: Float64Array,
  float16: Uint16Array,
  bool: Uint8Array,
  int8: Int8Array,
  int16: Int16Array,
  int32: Int32Array,
  int64: BigInt64Array,
  uint8: Uint8Array,
  uint16: Uint16Array,
  uint32: Uint32Array,
  uint64: BigUint64Array,
};

const folder = path.resolve(process.argv[2] ?? path.dirname(fileURLToPath(import.meta.url)));
const library = path.join(folder, 'node_modules/onnxruntime-web');
let ort, model, session, feeds, fetches;

async function hello() {
  if (!fs.existsSync(library)) throw new Error(`not installed: npm ci --prefix ${folder}`);
  ort ??= await import(pathToFileURL(path.join(library, 'dist/ort.node.min.mjs')).href);
  const { version } = JSON.parse(fs.readFileSync(path.join(library, 'package.json')));
  return { version: `onnxruntime-web ${version} (Node ${process.versions.node})` };
}

function readTensor({ name, dtype, dims, file }) {
  const bytes = fs.readFileSync(file);
  const elements = new ARRAYS[dtype](new Uint8Array(bytes).buffer);
  return [name, new ort.Tensor(dtype, elements, dims)];
}

const run = () => (fetches ? session.run(feeds, fetches) : session.run(feeds));

const create = () => ort.InferenceSession.create(model, { executionProviders: ['wasm'], logSeverityLevel: 4 });

async function load(command) {
  await hello();
  ort.env.wasm.numThreads = command.threads;
  ort.env.logLevel = 'fatal';
  feeds = Object.fromEntries(command.inputs.map(readTensor));
  fetches = command.fetches;
  model = new Uint8Array(fs.readFileSync(command.model));
  const start = performance.now();
  session = await create();
  const created = performance.now();
  const held = memory();
  const first = performance.now();
  const result = await run();
  const ran = performance.now();
  const outputs = Object.entries(result).map(([name, tensor], index) => {
    fs.writeFileSync(path.join(command.save, `${index}.bin`), tensor.data);
    return { name, dtype: tensor.type, dims: tensor.dims };
  });
  return { create_ms: created - start, first_ms: ran - first, created: held, outputs };
}

async function runs({ times }) {
  const ms = [];
  for (let i = 0; i < times; i++) {
    const start = performance.now();
    await run();
    ms.push(performance.now() - start);
  }
  return { ms };
}

// The first n elements along an axis.
function part(tensor, axis, n) {
  const inner = tensor.dims.slice(axis + 1).reduce((a, b) => a * b, 1);
  const outer = tensor.dims.slice(0, axis).reduce((a, b) => a * b, 1);
  const elements = new tensor.data.constructor(outer * n * inner);
  for (let i = 0; i < outer; i++) {
    const from = i * tensor.dims[axis] * inner;
    elements.set(tensor.data.subarray(from, from + n * inner), i * n * inner);
  }
  return new ort.Tensor(tensor.type, elements, tensor.dims.with(axis, n));
}

async function lengths({ axis, sizes }) {
  await session.release();
  session = await create();
  const whole = feeds;
  const ms = [];
  for (const n of sizes) {
    feeds = Object.fromEntries(Object.entries(whole).map(([name, tensor]) => [name, part(tensor, axis, n)]));
    ms.push(...(await runs({ times: 1 })).ms);
  }
  feeds = whole;
  return { ms };
}

function memory() {
  const linear = memories.reduce((sum, m) => sum + m.buffer.byteLength, 0);
  return { linear: linear || null, peak: null, needed: null };
}

const commands = { hello, load, run: runs, lengths, memory };
for await (const line of readline.createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  let reply;
  try {
    reply = await commands[command.do](command);
  } catch (error) {
    reply = { error: String(error?.message ?? error) };
  }
  process.stdout.write(JSON.stringify(reply) + '\n');
}
process.exit(0);
