// Sends and receives jobs of Graphile Worker that run at a time, in PostgreSQL.
import { Logger, makeWorkerUtils, run } from "graphile-worker";
import { bulks, carryOut, main, payload } from "./lines.mjs";

const HANDLERS = 64;
const LOCAL_MAX = 500;
const POLL_MS = 10;

const task = process.env.BENCH_NAME;
const connectionString = process.env.BENCH_URL;
const logger = new Logger(() => (level, message) => level === "error" && console.error(message));

// A job that is added again under its key is moved.
const job = ([, number, dueMs]) => ({
  identifier: task,
  payload: { message: payload(number) },
  runAt: new Date(Number(dueMs)),
  jobKey: `m${number}`,
});

async function cancel(utils, orders) {
  const keys = orders.map(([, number]) => `m${number}`);
  if (!keys.length) return;
  await utils.withPgClient((client) =>
    client.query("select graphile_worker.remove_job(key) from unnest($1::text[]) as key", [keys]),
  );
}

async function send() {
  const utils = await makeWorkerUtils({ connectionString, logger });
  await carryOut(async (orders) => {
    for (const verb of "sm") {
      for (const some of bulks(orders.filter(([one]) => one === verb))) await utils.addJobs(some.map(job));
    }
    await cancel(utils, orders.filter(([verb]) => verb === "c"));
  });
  await utils.release();
}

async function receive(note, fail) {
  const runner = await run({
    logger,
    taskList: { [task]: ({ message }) => note(message) },
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
  return () => runner.stop();
}

main(send, receive);
