// Sends and receives delayed jobs of BullMQ.
import { Queue, Worker } from "bullmq";
import { Redis } from "ioredis";
import { bulks, carryOut, main, payload } from "./lines.mjs";

const HANDLERS = 100;

const name = process.env.BENCH_NAME;
const connection = new Redis(process.env.BENCH_URL, { maxRetriesPerRequest: null });

const jobId = (number) => `m${number}`; // a job's own id must not be a number
const delay = (dueMs) => Math.max(0, Number(dueMs) - Date.now());
const job = ([, number, dueMs]) => ({
  name: "message",
  data: payload(number),
  opts: { jobId: jobId(number), delay: delay(dueMs), removeOnComplete: true, removeOnFail: true },
});

async function change(queue, [verb, number, dueMs]) {
  const job = await queue.getJob(jobId(number));
  if (job) await (verb === "c" ? job.remove() : job.changeDelay(delay(dueMs)));
}

async function send() {
  const queue = new Queue(name, { connection });
  await carryOut(async (orders) => {
    for (const some of bulks(orders.filter(([verb]) => verb === "s"))) await queue.addBulk(some.map(job));
    await Promise.all(orders.filter(([verb]) => verb === "m" || verb === "c").map((order) => change(queue, order)));
  });
  await queue.close();
  connection.disconnect();
}

async function receive(note, fail) {
  const worker = new Worker(name, async (job) => note(job.data), {
    connection,
    concurrency: HANDLERS,
    removeOnComplete: { count: 0 },
    removeOnFail: { count: 0 },
  });
  worker.on("error", fail);
  await worker.waitUntilReady();
}

main(send, receive);
