// Sends and receives delayed jobs of BullMQ.
import { openSync, writeSync } from "node:fs";
import { Queue, Worker } from "bullmq";
import { Redis } from "ioredis";

const PAYLOAD_BYTES = 100;
const NUMBER_BYTES = 16;
const BULK_MAX = 1_000;
const HANDLERS = 100;
const FLUSH_MS = 20;

const name = process.env.BENCH_NAME;
const connection = new Redis(process.env.BENCH_URL, { maxRetriesPerRequest: null });
const fail = (error) => {
  console.error(error);
  process.exit(1);
};

const jobId = (number) => `m${number}`; // a job's own id must not be a number
const delay = (dueMs) => Math.max(0, Number(dueMs) - Date.now());

async function schedule(queue, orders) {
  for (let first = 0; first < orders.length; first += BULK_MAX) {
    await queue.addBulk(
      orders.slice(first, first + BULK_MAX).map(([, number, dueMs]) => ({
        name: "message",
        data: number.padEnd(NUMBER_BYTES).padEnd(PAYLOAD_BYTES, "x"),
        opts: { jobId: jobId(number), delay: delay(dueMs), removeOnComplete: true, removeOnFail: true },
      })),
    );
  }
}

async function change(queue, [verb, number, dueMs]) {
  const job = await queue.getJob(jobId(number));
  if (job) await (verb === "c" ? job.remove() : job.changeDelay(delay(dueMs)));
}

// Lines are carried out as they come, a piece of the input after the other.
async function send() {
  const queue = new Queue(name, { connection });
  process.stdout.write("ready\n");
  let rest = "";
  for await (const piece of process.stdin) {
    const lines = (rest + piece).split("\n");
    rest = lines.pop();
    const orders = lines.map((line) => line.split(" "));
    await schedule(queue, orders.filter(([verb]) => verb === "s"));
    await Promise.all(orders.filter(([verb]) => verb === "m" || verb === "c").map((order) => change(queue, order)));
    for (const [verb] of orders) if (verb === "f") process.stdout.write("flushed\n");
  }
  await queue.close();
  connection.disconnect();
}

async function receive() {
  const file = openSync(process.env.BENCH_ARRIVALS, "a", 0o600);
  let lines = [];
  const flush = () => {
    if (lines.length) writeSync(file, lines.join(""));
    lines = [];
  };
  const note = async (job) => {
    lines.push(`${job.data.slice(0, NUMBER_BYTES).trimEnd()} ${Date.now()}\n`);
  };
  const worker = new Worker(name, note, {
    connection,
    concurrency: HANDLERS,
    removeOnComplete: { count: 0 },
    removeOnFail: { count: 0 },
  });
  worker.on("error", fail);
  await worker.waitUntilReady();
  lines.push("ready\n");
  setInterval(flush, FLUSH_MS);
  process.on("SIGTERM", () => {
    flush();
    process.exit(0);
  });
}

(process.argv[2] === "send" ? send() : receive()).catch(fail);
