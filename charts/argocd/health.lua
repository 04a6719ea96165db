-- Argo CD's health of serving.pagoda.dev/InferenceService. It reads what kstatus reads, so that Argo CD and Flux agree:
-- Stalled is Degraded, Reconciling is Progressing, Ready is Healthy, also at zero pods (the gateway wakes the service).
local function health(status, message)
  return {status = status, message = message}
end

if obj.metadata.deletionTimestamp ~= nil then
  return health("Progressing", "being deleted")
end

local status = obj.status
-- A status of an older generation speaks of another spec.
if status == nil or status.conditions == nil or status.observedGeneration ~= obj.metadata.generation then
  return health("Progressing", "the operator has not looked at this generation yet")
end

local conditions = {}
for _, condition in ipairs(status.conditions) do
  conditions[condition.type] = condition
end

local function message_of(condition)
  return (condition.reason or "") .. ": " .. (condition.message or "")
end

local stalled, reconciling, ready = conditions.Stalled, conditions.Reconciling, conditions.Ready
if stalled ~= nil and stalled.status == "True" then
  return health("Degraded", message_of(stalled))
end
if reconciling ~= nil and reconciling.status == "True" then
  return health("Progressing", message_of(reconciling))
end
if ready == nil then
  return health("Progressing", "the operator has not looked at this generation yet")
end
if ready.status == "True" then
  return health("Healthy", message_of(ready))
end
if ready.status == "Unknown" then
  return health("Progressing", message_of(ready))
end
return health("Degraded", message_of(ready))
