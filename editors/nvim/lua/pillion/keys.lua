--- Keys of the insert mode. They are mapped only while a suggestion is on the screen, in its buffer
--- only, and what was mapped before comes back; so nobody else's mapping has to know of them.

local config = require("pillion.config")

local M = {}

local ACTIONS = {
  accept = "accept('all')",
  accept_line = "accept('line')",
  accept_word = "accept('word')",
  next = "cycle(1)",
  prev = "cycle(-1)",
  dismiss = "dismiss()",
  trigger = "trigger()",
}
local WHILE_SHOWN = { "accept", "accept_line", "accept_word", "next", "prev", "dismiss" }

---@type integer?
local buffer
---@type table<string, {callback: function, before: table?}>
local installed = {}

--- What a key has to type for an action; nothing where there is nothing to act on.
---@param action string
---@return string
function M.press(action)
  local completion = require("pillion.completion")
  if action ~= "trigger" and not completion.visible() then
    return ""
  end
  local keys = ("<Cmd>lua require('pillion.completion').%s<CR>"):format(ACTIONS[action])
  -- What is accepted is one step of undo, apart from what was typed before and will be after.
  return vim.startswith(action, "accept") and "<C-g>u" .. keys .. "<C-g>u" or keys
end

---@param lhs string|string[]|false|nil
---@return string[]
local function listed(lhs)
  if not lhs then
    return {}
  end
  return type(lhs) == "table" and lhs or { lhs }
end

---@param lhs string
---@return table? the mapping of this buffer alone
local function local_mapping(lhs)
  local map = vim.fn.maparg(lhs, "i", false, true)
  return map.buffer == 1 and map or nil
end

---@param lhs string
---@param action string
local function install(lhs, action)
  local before = local_mapping(lhs)
  -- Somebody who wrapped the mapping may run it when it is long gone: then it is just the key.
  local function callback()
    return require("pillion.completion").visible() and M.press(action) or lhs
  end
  vim.keymap.set("i", lhs, callback, {
    buffer = buffer,
    expr = true,
    replace_keycodes = true,
    nowait = true,
    desc = "Pillion: " .. action,
  })
  installed[lhs] = { callback = callback, before = before }
end

--- A suggestion is on the screen.
---@param shown_in integer the current buffer
function M.install(shown_in)
  if buffer == shown_in then
    return
  end
  M.remove()
  buffer = shown_in
  local keys = config.get().keys
  for _, action in ipairs(keys and WHILE_SHOWN or {}) do
    for _, lhs in ipairs(listed(keys[action])) do
      install(lhs, action)
    end
  end
end

--- It is not any more.
function M.remove()
  if not buffer then
    return
  end
  local was = buffer
  buffer = nil
  if vim.api.nvim_buf_is_valid(was) then
    vim.api.nvim_buf_call(was, function()
      for lhs, mine in pairs(installed) do
        local now = local_mapping(lhs)
        if now and now.callback == mine.callback then
          vim.keymap.del("i", lhs, { buffer = was })
          if mine.before then
            vim.fn.mapset("i", false, mine.before)
          end
        end
      end
    end)
  end
  installed = {}
end

--- The one key that works without a suggestion. A mapping of the user's own wins.
function M.install_trigger()
  local keys = config.get().keys
  for _, lhs in ipairs(listed(keys and keys.trigger)) do
    if vim.fn.maparg(lhs, "i") == "" then
      vim.keymap.set("i", lhs, "<Plug>(pillion-trigger)", { desc = "Pillion: trigger" })
    end
  end
end

return M
