// One scenario of the OpenAI Node SDK against a server: `node stream.mjs URL SCENARIO` prints what came of it as JSON.

import OpenAI from 'openai';

const [url, scenario] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0, timeout: 60_000 });
const model = 'text';

const weather = {
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'The weather of a city',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  },
};

const asked = (content, more = {}) => ({ model, messages: [{ role: 'user', content }], ...more });

const scenarios = {
  async chat() {
    const more = { stream: true, stream_options: { include_usage: true } };
    const stream = await client.chat.completions.create(asked('Say hello.', more));
    const pieces = [];
    let finish = null;
    let usage = null;
    for await (const chunk of stream) {
      const [choice] = chunk.choices;
      if (choice?.delta.content) pieces.push(choice.delta.content);
      finish = choice?.finish_reason ?? finish;
      usage = chunk.usage ?? usage;
    }
    return { pieces, finish, usage };
  },

  async whole() {
    const answer = await client.chat.completions.create(asked('Say hello.'));
    const [choice] = answer.choices;
    return { text: choice.message.content, finish: choice.finish_reason, usage: answer.usage };
  },

  async tools() {
    const deltas = [];
    const stream = client.chat.completions.stream(asked('The weather?', { tools: [weather] }));
    stream.on('tool_calls.function.arguments.delta', (event) => deltas.push(event.arguments_delta));
    const answer = await stream.finalChatCompletion();
    const [choice] = answer.choices;
    return { deltas, calls: choice.message.tool_calls, text: choice.message.content, finish: choice.finish_reason };
  },

  // The SDK calls the function itself, sends its result back, and streams what the model makes of it.
  async run_tools() {
    const cities = [];
    const call = ({ city }) => {
      cities.push(city);
      return '18 degrees';
    };
    const tool = { type: 'function', function: { ...weather.function, function: call, parse: JSON.parse } };
    const runner = client.chat.completions.runTools(asked('The weather?', { tools: [tool], stream: true }));
    let streamed = '';
    runner.on('content', (delta) => (streamed += delta));
    const text = await runner.finalContent();
    return { cities, streamed, text, roles: runner.messages.map((message) => message.role) };
  },

  async embeddings() {
    const given = { model: 'vectors', input: ['one', 'two', 'one'] };
    const base64 = await client.embeddings.create(given); // which the SDK asks for, and decodes
    const float = await client.embeddings.create({ ...given, encoding_format: 'float' });
    const vectors = (answer) => answer.data.map((one) => Array.from(one.embedding));
    return { base64: vectors(base64), float: vectors(float), usage: base64.usage };
  },

  async responses() {
    const stream = client.responses.stream({ model, input: 'Say hello.' });
    const kinds = [];
    let streamed = '';
    for await (const event of stream) {
      kinds.push(event.type);
      if (event.type === 'response.output_text.delta') streamed += event.delta;
    }
    const response = await stream.finalResponse();
    return { kinds, streamed, text: response.output_text, status: response.status, usage: response.usage };
  },

  async models() {
    const ids = [];
    for await (const one of client.models.list()) ids.push(one.id);
    return { ids, one: (await client.models.retrieve(model)).id };
  },

  async error() {
    try {
      await client.chat.completions.create(asked('Say hello.', { temperature: 3, stream: true }));
    } catch (error) {
      const { status, param, type, message, requestID } = error;
      return { name: error.constructor.name, status, param, type, message, requestID };
    }
    return { name: null };
  },

  async abort() {
    const stream = await client.chat.completions.create(asked('Go on for ever.', { stream: true, ignore_eos: true }));
    let pieces = 0;
    for await (const chunk of stream) {
      if (chunk.choices[0]?.delta.content) pieces += 1;
      if (pieces === 5) stream.controller.abort();
    }
    return { pieces };
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
