// What the programs of all clients have in common: prompts come in, one line of JSON for each case goes out.

export const MODEL = "desk";
export const URL = process.env.OPENAI_BASE_URL;
export const KEY = process.env.OPENAI_API_KEY;
export const PROMPTS = JSON.parse(process.env.PROMPTS);
export const IMAGE = process.env.IMAGE;

// Those that the arguments name. An error is an answer as well: the judge reads what a user would see of it.
export async function run(cases) {
  for (const name of process.argv.slice(2)) {
    let told;
    try {
      told = name in cases ? { got: await cases[name]() } : { none: true };
    } catch (error) {
      told = { error: `${error?.name}: ${error?.message}`.slice(0, 1000) };
    }
    console.log(JSON.stringify({ case: name, ...told }));
  }
  process.exit(0);
}

// Something of a stream is here: the server may go now.
export const seen = () => console.log('{"seen": true}');

export const weather = ({ city }) => `rain in ${city}`;

export const CITY = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};

export const CELSIUS = {
  type: "object",
  properties: { celsius: { type: "integer" } },
  required: ["celsius"],
  additionalProperties: false,
};
