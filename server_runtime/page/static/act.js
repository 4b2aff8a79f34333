export function orderButtons() { return null; }
export function deviceButtons() { return null; }
