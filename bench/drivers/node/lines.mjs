// The lines of the bench for drivers in Node: orders come in, arrivals go out.
import { openSync, writeSync } from "node:fs";

const PAYLOAD_BYTES = 100;
const NUMBER_BYTES = 16;
const BULK_MAX = 1_000;
const FLUSH_MS = 20;

const fail = (error) => {
  console.error(error);
  process.exit(1);
};

// The number, and filling up to the size that all systems send.
export const payload = (number) => number.padEnd(NUMBER_BYTES).padEnd(PAYLOAD_BYTES, "x");

// A list in pieces of at most what is sent at once.
export function* bulks(orders) {
  for (let first = 0; first < orders.length; first += BULK_MAX) yield orders.slice(first, first + BULK_MAX);
}

// Says ready, and has a piece of the input carried out after the other: [verb, number, due ms].
export async function carryOut(give) {
  process.stdout.write("ready\n");
  let rest = "";
  for await (const piece of process.stdin) {
    const lines = (rest + piece).split("\n");
    rest = lines.pop();
    const orders = lines.map((line) => line.split(" "));
    await give(orders);
    for (const [verb] of orders) if (verb === "f") process.stdout.write("flushed\n");
  }
}

// Hands a function that writes down an arrival to `begin`, which returns what ends it, and says ready.
async function arrive(begin) {
  const file = openSync(process.env.BENCH_ARRIVALS, "a", 0o600);
  let lines = [];
  const flush = () => {
    if (lines.length) writeSync(file, lines.join(""));
    lines = [];
  };
  const end = await begin((message) => {
    lines.push(`${message.slice(0, NUMBER_BYTES).trimEnd()} ${Date.now()}\n`);
  }, fail);
  lines.push("ready\n");
  setInterval(flush, FLUSH_MS);
  process.on("SIGTERM", async () => {
    await end?.();
    flush();
    process.exit(0);
  });
}

// `send` or `receive`, as the first argument says.
export const main = (send, receive) => (process.argv[2] === "send" ? send() : arrive(receive)).catch(fail);
