// The Anthropic Node SDK against a server: `node messages.mjs URL all` prints what came of each scenario as JSON.

import Anthropic from '@anthropic-ai/sdk';

const [url] = process.argv.slice(2);
const client = new Anthropic({ baseURL: url, apiKey: 'none', maxRetries: 0, timeout: 60_000 });
const model = 'text';

const weather = {
  name: 'get_weather',
  description: 'The weather of a city',
  input_schema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
};

const asked = (content, more = {}) => ({ model, max_tokens: 256, messages: [{ role: 'user', content }], ...more });

const scenarios = {
  async create() {
    const message = await client.messages.create(asked('Say hello.'));
    return { text: message.content[0].text, reason: message.stop_reason, usage: message.usage };
  },

  async stream() {
    const pieces = [];
    const kinds = [];
    const stream = client.messages.stream(asked('Say hello.'));
    stream.on('text', (text) => pieces.push(text));
    stream.on('streamEvent', (event) => kinds.push(event.type));
    const message = await stream.finalMessage();
    return { pieces, kinds, text: message.content[0].text, reason: message.stop_reason, usage: message.usage };
  },

  async tools() {
    const deltas = [];
    const request = asked('The weather?', { tools: [weather] });
    const stream = client.messages.stream(request);
    stream.on('inputJson', (delta) => deltas.push(delta));
    const first = await stream.finalMessage();
    const [call] = first.content;
    const result = { type: 'tool_result', tool_use_id: call.id, content: '18 degrees' };
    request.messages.push({ role: 'assistant', content: first.content }, { role: 'user', content: [result] });
    const second = await client.messages.create(request);
    return { deltas, call, reasons: [first.stop_reason, second.stop_reason], text: second.content[0].text };
  },

  async count() {
    return client.messages.countTokens({ model, messages: [{ role: 'user', content: 'Say hello.' }] });
  },

  async models() {
    const ids = [];
    for await (const one of client.models.list({ limit: 1 })) ids.push(one.id);
    return { ids, one: (await client.models.retrieve(model)).id };
  },

  async error() {
    try {
      await client.messages.create(asked('Say hello.', { model: 'claude-opus-4-5' }));
    } catch (error) {
      return { name: error.constructor.name, status: error.status, body: error.error, requestID: error.requestID };
    }
    return { name: null };
  },
};

const outcomes = {};
for (const [name, play] of Object.entries(scenarios)) outcomes[name] = await play();
console.log(JSON.stringify(outcomes));
