--- Floating windows that `q` and <Esc> close.

local M = {}

---@class pillion.Window
---@field buffer integer
---@field window integer
---@field frame string[] what stands in the border

---@param lines string[]
---@return integer
local function widest(lines)
  local width = 0
  for _, line in ipairs(lines) do
    width = math.max(width, vim.fn.strdisplaywidth(line))
  end
  return width
end

---@param lines string[]
---@param frame string[]
---@return {width: integer, height: integer, row: integer, col: integer}
local function place(lines, frame)
  local needed = math.max(widest(lines) + 1, widest(frame))
  local width = math.min(needed, math.max(vim.o.columns - 4, 10))
  local height = math.min(math.max(#lines, 1), math.max(vim.o.lines - vim.o.cmdheight - 4, 3))
  return {
    width = width,
    height = height,
    row = math.max(0, math.floor((vim.o.lines - vim.o.cmdheight - height) / 2) - 1),
    col = math.max(0, math.floor((vim.o.columns - width) / 2) - 1),
  }
end

--- Put lines into a window's buffer, which nobody else can change.
---@param buffer integer
---@param lines string[]
function M.fill(buffer, lines)
  vim.bo[buffer].modifiable = true
  vim.api.nvim_buf_set_lines(buffer, 0, -1, false, lines)
  vim.bo[buffer].modifiable = false
  vim.bo[buffer].modified = false
end

--- Make it as large as its lines need.
---@param shown pillion.Window
---@param lines string[]
function M.resize(shown, lines)
  if vim.api.nvim_win_is_valid(shown.window) then
    local options = place(lines, shown.frame) ---@type table
    options.relative = "editor"
    vim.api.nvim_win_set_config(shown.window, options)
  end
end

---@param lines string[]
---@param options {title: string, footer: string?, filetype: string, closed: fun()?}
---@return pillion.Window
function M.open(lines, options)
  local buffer = vim.api.nvim_create_buf(false, true)
  vim.bo[buffer].bufhidden = "wipe"
  M.fill(buffer, lines)
  local frame = { " " .. options.title .. " ", options.footer and " " .. options.footer .. " " }
  local layout = place(lines, frame) ---@type table
  layout.relative, layout.style, layout.border = "editor", "minimal", "rounded"
  layout.title, layout.footer = frame[1], frame[2]
  local window = vim.api.nvim_open_win(buffer, true, layout)
  vim.bo[buffer].filetype = options.filetype
  vim.wo[window].wrap = false
  for _, key in ipairs({ "q", "<Esc>" }) do
    vim.keymap.set("n", key, "<Cmd>close<CR>", { buffer = buffer, nowait = true })
  end
  if options.closed then
    vim.api.nvim_create_autocmd("BufWipeout", {
      buffer = buffer,
      once = true,
      callback = function()
        vim.schedule(options.closed)
      end,
    })
  end
  return { buffer = buffer, window = window, frame = frame }
end

return M
