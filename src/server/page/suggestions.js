// These are suggestions for an empty conversation. The bundled model can do only a few tasks, so it has its own list.
const BUNDLED = ['Tell me a short story about a brave fox.', 'Please add 217254 and 8366.',
                 'Sort the following codes: QZ, HJK, SJW, DRZ, DL'];
const GENERAL = ['Explain how tides work, with the formula for the tidal force.',
                 'Write a Python function that merges overlapping intervals.',
                 'Compare three ways to store passwords in a table.',
                 'Help me plan a week of simple dinners.'];

// `model` is {id, root} as the server lists it.
export const suggestionsFor = (model) => (/hadal-tiny/.test(`${model.id} ${model.root || ''}`) ? BUNDLED : GENERAL);
