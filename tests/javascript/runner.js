// Runs scenarios in Node: each line of the input names one, with its arguments; each line of the output is an outcome.

import { createInterface } from "node:readline";

const [client, scenarios] = await Promise.all(process.argv.slice(2).map((path) => import(path)));
console.error = () => {}; // what handlers throw is logged

for await (const line of createInterface({ input: process.stdin })) {
  const { name, args } = JSON.parse(line);
  const answer = await scenarios[name](client, ...args).then(
    (value) => ({ value }),
    (error) => ({ error: error.stack }),
  );
  process.stdout.write(JSON.stringify(answer) + "\n");
}
