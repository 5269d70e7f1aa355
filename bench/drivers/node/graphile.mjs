// Sends and receives jobs of Graphile Worker that run at a time, in PostgreSQL.
import { openSync, writeSync } from "node:fs";
import { Logger, makeWorkerUtils, run } from "graphile-worker";

const PAYLOAD_BYTES = 100;
const NUMBER_BYTES = 16;
const BULK_MAX = 1_000;
const HANDLERS = 64;
const LOCAL_MAX = 500;
const POLL_MS = 10;
const FLUSH_MS = 20;

const task = process.env.BENCH_NAME;
const connectionString = process.env.BENCH_URL;
const logger = new Logger(() => (level, message) => level === "error" && console.error(message));
const fail = (error) => {
  console.error(error);
  process.exit(1);
};

// A job that is added again under its key is moved.
const job = ([, number, dueMs]) => ({
  identifier: task,
  payload: { message: number.padEnd(NUMBER_BYTES).padEnd(PAYLOAD_BYTES, "x") },
  runAt: new Date(Number(dueMs)),
  jobKey: `m${number}`,
});

async function add(utils, orders) {
  for (let first = 0; first < orders.length; first += BULK_MAX) {
    await utils.addJobs(orders.slice(first, first + BULK_MAX).map(job));
  }
}

async function cancel(utils, orders) {
  const keys = orders.map(([, number]) => `m${number}`);
  if (!keys.length) return;
  await utils.withPgClient((client) =>
    client.query("select graphile_worker.remove_job(key) from unnest($1::text[]) as key", [keys]),
  );
}

// Lines are carried out as they come, a piece of the input after the other.
async function send() {
  const utils = await makeWorkerUtils({ connectionString, logger });
  process.stdout.write("ready\n");
  let rest = "";
  for await (const piece of process.stdin) {
    const lines = (rest + piece).split("\n");
    rest = lines.pop();
    const orders = lines.map((line) => line.split(" "));
    for (const verb of "sm") await add(utils, orders.filter(([one]) => one === verb));
    await cancel(utils, orders.filter(([verb]) => verb === "c"));
    for (const [verb] of orders) if (verb === "f") process.stdout.write("flushed\n");
  }
  await utils.release();
}

async function receive() {
  const file = openSync(process.env.BENCH_ARRIVALS, "a", 0o600);
  let lines = [];
  const flush = () => {
    if (lines.length) writeSync(file, lines.join(""));
    lines = [];
  };
  const note = ({ message }) => {
    lines.push(`${message.slice(0, NUMBER_BYTES).trimEnd()} ${Date.now()}\n`);
  };
  const runner = await run({
    logger,
    taskList: { [task]: note },
    noHandleSignals: true,
    preset: {
      worker: {
        connectionString,
        concurrentJobs: HANDLERS,
        maxPoolSize: HANDLERS + 2,
        pollInterval: POLL_MS,
        localQueue: { size: LOCAL_MAX },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
      },
    },
  });
  runner.promise.catch(fail);
  lines.push("ready\n");
  setInterval(flush, FLUSH_MS);
  process.on("SIGTERM", async () => {
    await runner.stop();
    flush();
    process.exit(0);
  });
}

(process.argv[2] === "send" ? send() : receive()).catch(fail);
