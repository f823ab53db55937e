--- `:Pillion explain`: an answer that is shown while it is written.

local job = require("pillion.job")
local window = require("pillion.window")

local M = {}

---@param buffer integer
---@param range lsp.Range?
---@param question string
function M.run(buffer, range, question)
  local asked = question ~= "" and question or nil
  local params = { uri = vim.uri_from_bufnr(buffer), range = range, question = asked }
  local text, view = "", nil ---@type string, pillion.Window?

  local function show()
    local lines = vim.split(text, "\r?\n")
    if not view then
      view = window.open(lines, {
        title = "Pillion: explain",
        footer = "q closes",
        filetype = "markdown",
        closed = function()
          view = nil
          if job.current() and vim.startswith(job.current(), "explain") then
            job.cancel()
          end
        end,
      })
      vim.wo[view.window].wrap = true
      vim.wo[view.window].linebreak = true
    elseif vim.api.nvim_buf_is_valid(view.buffer) then
      window.fill(view.buffer, lines)
      window.resize(view, lines)
    end
  end

  job.run("explain", "pillion/explain", params, buffer, function(result)
    text = result.markdown
    show()
  end, function(value)
    text = text .. (value.markdown or "")
    show()
  end)
end

--- The code action "Explain".
---@param about {uri: string, range: lsp.Range, question: string?}
function M.by_action(about)
  M.run(vim.uri_to_bufnr(about.uri), about.range, about.question or "")
end

return M
