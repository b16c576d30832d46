// Draws the chart's Grafana dashboard with Grafana's own panels (@grafana/ui) from answers of Prometheus, without a
// Grafana: window.input is {dashboard, from, to, width, answers: for each panel and target the HTTP API's answer}.
import { createRoot } from 'react-dom/client';
import {
  createDataFrame,
  createTheme,
  dateTime,
  FieldType,
  getDisplayProcessor,
  getFieldDisplayValues,
  ThemeContext,
} from '@grafana/data';
import {
  BigValue,
  BigValueColorMode,
  BigValueGraphMode,
  BigValueTextMode,
  GlobalStyles,
  PanelChrome,
  Table,
  TimeSeries,
} from '@grafana/ui';

const COLUMNS = 24; // of Grafana's grid; one row is 30 pixels and a gap of 8
const ROW = 30, GAP = 8;
const theme = createTheme({ colors: { mode: 'dark' } });
const { dashboard, from, to, width, answers } = window.input;

function nameOf(target, labels) {
  if (target.legendFormat) return target.legendFormat.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => labels[label] ?? '');
  const { __name__: name = '', ...rest } = labels;
  const text = Object.entries(rest).map(([key, value]) => `${key}="${value}"`);
  return text.length ? `${name}{${text.join(', ')}}` : name || 'Value';
}

function seriesFrames(target, result) {
  return result.map(({ metric, values }) =>
    createDataFrame({
      fields: [
        { name: 'Time', type: FieldType.time, values: values.map(([seconds]) => seconds * 1000) },
        {
          name: 'Value',
          type: FieldType.number,
          values: values.map(([, value]) => (value === 'NaN' ? null : Number(value))), // 0/0: no line
          config: { displayNameFromDS: nameOf(target, metric) },
        },
      ],
    })
  );
}

function tableFrame(panel, result) {
  const hidden = (panel.transformations ?? []).find((t) => t.id === 'organize')?.options.excludeByName ?? {};
  const labels = [...new Set(result.flatMap(({ metric }) => Object.keys(metric)))].filter((label) => !hidden[label]).sort();
  return createDataFrame({
    fields: labels.map((name) => ({ name, type: FieldType.string, values: result.map(({ metric }) => metric[name] ?? '') })),
  });
}

function framesOf(panel, results) {
  const data = panel.targets.flatMap((target, i) =>
    panel.type === 'table' ? [tableFrame(panel, results[i])] : seriesFrames(target, results[i])
  );
  // As Grafana applies a panel's defaults. Its registry of options is part of Grafana, not of these packages.
  if (panel.fieldConfig.overrides?.length) throw new Error(`panel '${panel.title}': overrides cannot be drawn`);
  data.forEach(({ fields }, seriesIndex) => {
    for (const field of fields) {
      const color = { mode: panel.type === 'timeseries' ? 'palette-classic' : 'thresholds' };
      const thresholds = { mode: 'absolute', steps: [{ color: 'green', value: -Infinity }] };
      const config = field.type === FieldType.number ? { color, thresholds, ...panel.fieldConfig.defaults } : {};
      field.config = { custom: { lineWidth: 1, showPoints: 'never' }, ...config, ...field.config };
      for (const step of field.config.thresholds?.steps ?? []) step.value ??= -Infinity;
      field.state = { ...field.state, seriesIndex };
      field.display = getDisplayProcessor({ field, theme, timeZone: 'utc' });
    }
  });
  return data;
}

function content(panel, frames, box) {
  if (panel.type === 'table') return <Table data={frames[0]} {...box} />;
  if (panel.type === 'timeseries') {
    const timeRange = { from: dateTime(from), to: dateTime(to), raw: { from: 'now-5m', to: 'now' } };
    const legend = { displayMode: 'list', placement: 'bottom', showLegend: true, calcs: [] };
    return <TimeSeries frames={frames} structureRev={1} timeRange={timeRange} timeZone="utc" legend={legend} {...box} />;
  }
  if (panel.type === 'stat') {
    const [shown] = getFieldDisplayValues({
      data: frames,
      fieldConfig: { defaults: {}, overrides: [] }, // framesOf() has applied them
      reduceOptions: { calcs: ['lastNotNull'] },
      replaceVariables: (text) => text,
      theme,
      timeZone: 'utc',
    });
    return (
      <BigValue
        value={shown.display}
        theme={theme}
        colorMode={BigValueColorMode.Value}
        graphMode={BigValueGraphMode.None}
        textMode={BigValueTextMode.Value}
        {...box}
      />
    );
  }
  throw new Error(`panel '${panel.title}': type ${panel.type} cannot be drawn; accepted: stat, timeseries, table`);
}

function Panel({ panel, results }) {
  const { x, y, w, h } = panel.gridPos;
  const column = (width - GAP * (COLUMNS + 1)) / COLUMNS;
  const box = { width: w * (column + GAP) - GAP, height: h * (ROW + GAP) - GAP };
  const place = { position: 'absolute', left: GAP + x * (column + GAP), top: GAP + y * (ROW + GAP) };
  return (
    <div style={{ ...place, ...box }}>
      <PanelChrome title={panel.title} {...box}>
        {(innerWidth, innerHeight) => content(panel, framesOf(panel, results), { width: innerWidth, height: innerHeight })}
      </PanelChrome>
    </div>
  );
}

function Dashboard() {
  const rows = Math.max(...dashboard.panels.map(({ gridPos }) => gridPos.y + gridPos.h));
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <div id="dashboard" style={{ position: 'relative', width, height: rows * (ROW + GAP) + GAP }}>
        {dashboard.panels.map((panel, i) => (
          <Panel key={panel.title} panel={panel} results={answers[i]} />
        ))}
      </div>
    </ThemeContext.Provider>
  );
}

createRoot(document.getElementById('root')).render(<Dashboard />);
